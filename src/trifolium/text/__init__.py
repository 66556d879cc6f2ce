"""Text and tokens: tokenizers, chat templates, incremental detokenising, stop strings, reasoning."""

from __future__ import annotations

from .detokenize import IncrementalDetokenizer
from .reasoning import ReasoningSplitter
from .stop import StopMatcher
from .template import ChatTemplate, encode_chat
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "ReasoningSplitter", "StopMatcher", "Tokenizer", "encode_chat"]
