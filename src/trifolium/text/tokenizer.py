"""Text to token ids and back, from the files of either ecosystem."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .from_gguf import read_gguf
from .from_hf import read_hf
from .vocabulary import AddedTokens, Vocabulary

__all__ = ["Tokenizer"]


_MARK = "\x02"


class Tokenizer:
    """A vocabulary and the rules that cut text into it. Immutable, and safe to share between threads.

    Decoding is exact and additive: the bytes of a sequence are the bytes of its tokens, one after the other. So a
    SentencePiece model's leading space stays in the text, and nothing is "cleaned up".
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._added = AddedTokens(vocabulary.added)

    @classmethod
    def from_hf(cls, folder: Path) -> Tokenizer:
        """Read a Hugging Face folder: tokenizer.json, and what stands beside it about special tokens and templates.

        Raises NotFoundError (no tokenizer.json), CorruptFileError (not readable) or UnsupportedModelError (not BPE).
        """
        return cls(read_hf(folder))

    @classmethod
    def from_gguf(cls, source: Path | Mapping[str, Any]) -> Tokenizer:
        """Read a GGUF file, or metadata that has been read already (key to plain Python value).

        Raises NotFoundError, CorruptFileError or UnsupportedModelError (the message lists what is supported).
        """
        return cls(read_gguf(source))

    def encode(self, text: str, *, special: bool = True, add_bos: bool = False) -> list[int]:
        """Token ids of `text`. `special`: whether the text of special tokens becomes those tokens, or stays text.

        `add_bos` puts the BOS token first, if the vocabulary has one. Lone surrogates, which no UTF-8 text holds, are
        read as U+FFFD.
        """
        ids = self.encode_spans(text, [(0, len(text))] if special else [])
        return [self.bos_id, *ids] if add_bos and self.bos_id is not None else ids

    def encode_within(self, text: str) -> list[int]:
        """Token ids of text that stands inside other text: nothing is put before it, and special tokens stay text."""
        text = _without_surrogates(text)
        ids = self._encode_inner(text)
        data = text.encode()
        if self.decode_bytes(ids) == data:
            return ids
        # Some tokenizers put a blank before every text: a character that merges with nothing keeps it away from this.
        marked = self._encode_inner(_MARK + text)
        for start in range(1, min(len(marked), 4) + 1):
            if self.decode_bytes(marked[start:]) == data:
                return marked[start:]
        return ids

    def _encode_inner(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in self._added.split(text, ()):
            ids.extend([piece] if isinstance(piece, int) else self._vocabulary.encode_plain(piece, False))
        return ids

    def encode_spans(self, text: str, trusted: Sequence[tuple[int, int]]) -> list[int]:
        """Token ids of `text`, in which special tokens count only inside the spans `trusted` (sorted, disjoint)."""
        ids: list[int] = []
        first = True
        for piece in self._added.split(_without_surrogates(text), trusted):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(self._vocabulary.encode_plain(piece, first))
            first = False
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of `ids`; bytes that aren't UTF-8 become U+FFFD. `skip_special` leaves special tokens out."""
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """The bytes of `ids`, which may end within a character."""
        skipped = self.special_ids if skip_special else frozenset[int]()
        return b"".join(self.token_bytes(index) for index in ids if index not in skipped)

    def token_bytes(self, index: int) -> bytes:
        """Exactly the bytes that token `index` stands for; b"" for an id that the vocabulary leaves free.

        Raises UsageError for an id outside the vocabulary.
        """
        if not 0 <= index < self.vocab_size:
            raise UsageError(f"token id {index} is outside the vocabulary of {self.vocab_size} tokens")
        return self._vocabulary.pieces[index]

    @property
    def vocab_size(self) -> int:
        """One more than the highest id. A model may have more rows than that, as padding."""
        return len(self._vocabulary.pieces)

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token: no token covers more characters than that."""
        return max(map(len, self._vocabulary.pieces))

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every token that ends an answer: end of text, end of turn, end of message."""
        return self._vocabulary.eos_ids

    @property
    def eos_id(self) -> int | None:
        """The token that the files call EOS."""
        return self._vocabulary.eos_id

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the vocabulary has one."""
        return self._vocabulary.bos_id

    @property
    def eot_id(self) -> int | None:
        """The token that ends a turn, where it is known to differ in role from EOS."""
        return self._vocabulary.eot_id

    @property
    def pad_id(self) -> int | None:
        """The token that fills batches."""
        return self._vocabulary.pad_id

    @property
    def unk_id(self) -> int | None:
        """The token for what can't be encoded."""
        return self._vocabulary.unk_id

    @property
    def add_bos(self) -> bool:
        """Whether the model expects plain texts to begin with BOS. Chat templates write BOS themselves."""
        return self._vocabulary.add_bos

    @property
    def add_eos(self) -> bool:
        """Whether the model expects plain texts to end with EOS."""
        return self._vocabulary.add_eos

    @property
    def special_ids(self) -> frozenset[int]:
        """Tokens that steer the model and are no part of the text."""
        return self._vocabulary.special_ids

    @property
    def chat_template(self) -> str | None:
        """The source of the model's chat template (jinja), if its files hold one."""
        return self._vocabulary.chat_template

    @property
    def bos_token(self) -> str:
        """The text of BOS, as templates use it; "" if there is none."""
        return self._token_text(self.bos_id)

    @property
    def eos_token(self) -> str:
        """The text of EOS, as templates use it; "" if there is none."""
        return self._token_text(self.eos_id)

    def _token_text(self, index: int | None) -> str:
        return "" if index is None else self.token_bytes(index).decode("utf-8", errors="replace")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all tokens in order, with which of them are special: equal for equal vocabularies."""
        digest = hashlib.sha256()
        for index, piece in enumerate(self._vocabulary.pieces):
            digest.update(b"%d:%d:" % (len(piece), index in self.special_ids) + piece)
        return digest.hexdigest()


def _without_surrogates(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        # One for one, so that spans into the text stay right.
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return text
