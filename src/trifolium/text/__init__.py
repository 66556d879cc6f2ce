"""Text and tokens: tokenizers, chat templates, incremental detokenising and stop strings."""

from __future__ import annotations

from .detokenize import IncrementalDetokenizer
from .gguf_metadata import read_metadata
from .stop import StopMatcher
from .template import ChatTemplate, encode_chat
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "IncrementalDetokenizer", "StopMatcher", "Tokenizer", "encode_chat", "read_metadata"]
