"""Text from tokens as they arrive: only what can never change is given out."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from .tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer"]


class IncrementalDetokenizer:
    """Turns token ids into text piece by piece; the pieces together are `tokenizer.decode` of all ids.

    Tokens are bytes and may end within a character. Such a rest is held back until the character is complete, or can
    no longer become one: then it is U+FFFD, as it would be in the whole text.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that `ids` make final; it may be empty. Raises UsageError for an id outside the vocabulary."""
        return self._decoder.decode(self._tokenizer.decode_bytes(ids, skip_special=self._skip_special))

    def finish(self) -> str:
        """What is still held back, as U+FFFD; afterwards the object is as new."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
