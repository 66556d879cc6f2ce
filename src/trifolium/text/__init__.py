"""Text and tokens: tokenizers, chat templates, incremental detokenising and stop strings."""

from __future__ import annotations

from .detokenize import IncrementalDetokenizer
from .stop import StopMatcher
from .template import ChatTemplate, encode_chat
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "StopMatcher", "Tokenizer", "encode_chat"]
