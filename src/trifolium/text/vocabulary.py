"""What a tokenizer is made of, whichever file it was read from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["AddedToken", "AddedTokens", "PlainEncoder", "Vocabulary", "byte_alphabet"]


class PlainEncoder(Protocol):
    """Encodes text that holds no added tokens. `first` is true where the text begins the whole input."""

    def __call__(self, text: str, first: bool) -> list[int]: ...


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text as it stands, before any pre-tokenizer runs.

    `special` tokens steer the model (turn markers, end of text); the others are ordinary text with an id of its own.
    `lstrip` and `rstrip`: the token swallows white space on that side. `single_word`: only between non-word characters.
    """

    id: int
    text: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class AddedTokens:
    """Finds added tokens in text: the leftmost first, and the longest of those that start at one place."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        self._by_text = {token.text: token for token in tokens if token.text}
        ordered = sorted(self._by_text.values(), key=lambda token: -len(token.text))
        self._special = _alternatives([token for token in ordered if token.special])
        self._ordinary = _alternatives([token for token in ordered if not token.special])

    def split(self, text: str, trusted: Sequence[tuple[int, int]]) -> Iterator[str | int]:
        """Cut `text` into plain pieces (str, never empty) and token ids (int), in order.

        Special tokens count only inside the spans `trusted` (sorted, disjoint, in characters); elsewhere they are text.
        """
        for piece in self._cut(text, self._special, trusted):
            if isinstance(piece, int):
                yield piece
            else:
                yield from self._cut(piece, self._ordinary, [(0, len(piece))])

    def _cut(self, text: str, pattern: re.Pattern[str] | None, spans: Sequence[tuple[int, int]]) -> Iterator[str | int]:
        done = 0
        for start, stop in spans if pattern is not None else ():
            for match in pattern.finditer(text, start, stop):  # type: ignore[union-attr]
                token = self._by_text[match.group()]
                left, right = match.span()
                if left < done or (token.single_word and _touches_word(text, left, right)):
                    continue  # swallowed by the token before it, or part of a longer word
                if token.lstrip:
                    left = done + len(text[done:left].rstrip())
                if left > done:
                    yield text[done:left]
                yield token.id
                done = right
                if token.rstrip:
                    done += len(text) - right - len(text[right:].lstrip())
        if done < len(text):
            yield text[done:]


def _alternatives(tokens: Sequence[AddedToken]) -> re.Pattern[str] | None:
    return re.compile("|".join(re.escape(token.text) for token in tokens)) if tokens else None


def _touches_word(text: str, left: int, right: int) -> bool:
    def is_word(character: str) -> bool:
        return character.isalnum() or character == "_"

    return (left > 0 and is_word(text[left - 1])) or (right < len(text) and is_word(text[right]))


@dataclass(frozen=True)
class Vocabulary:
    """The parts of a tokenizer. `pieces[i]` is exactly what token i stands for, in bytes; b"" if i is no token."""

    pieces: list[bytes] = field(repr=False)
    encode_plain: PlainEncoder = field(repr=False)
    added: tuple[AddedToken, ...] = field(repr=False)
    special_ids: frozenset[int] = field(repr=False)
    eos_ids: frozenset[int]
    eos_id: int | None = None
    bos_id: int | None = None
    eot_id: int | None = None
    pad_id: int | None = None
    unk_id: int | None = None
    add_bos: bool = False
    add_eos: bool = False
    chat_template: str | None = field(default=None, repr=False)


def byte_alphabet() -> dict[str, int]:
    """The 256 printable characters that byte-level BPE writes bytes with, each with its byte.

    Printable Latin-1 bytes stand for themselves and the rest follow from U+0100 on (GPT-2, Radford et al. 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shown = {byte: chr(byte) for byte in printable}
    hidden = [byte for byte in range(256) if byte not in shown]
    shown.update({byte: chr(0x100 + rank) for rank, byte in enumerate(hidden)})
    return {character: byte for byte, character in shown.items()}
