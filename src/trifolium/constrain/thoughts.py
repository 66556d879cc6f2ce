"""A budget for thinking: after so many tokens, an open think block is closed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from .guide import Allowed, Guide, Path

OPEN, CLOSE, CALL = b"<think>", b"</think>", b"<tool_call>"


@dataclass(frozen=True)
class Thoughts:
    """How long an answer may think. `budget`: tokens before the block is closed; `opened`: the prompt has opened it.

    Where it hasn't, an answer thinks that begins with a think block of its own. A tool call ends it, too.
    """

    budget: int
    opened: bool


@dataclass(frozen=True)
class _Place:
    """Where an answer is. `thought`: tokens of the block so far. `tail`: bytes that may belong to a tag."""

    side: Literal["before", "thinking", "after"]
    thought: int = 0
    tail: bytes = b""

    def then(self, piece: bytes) -> _Place:
        """The place after a token."""
        if self.side == "after":
            return self
        tail = self.tail + piece
        if self.side == "before":
            start = tail.lstrip()
            if start.startswith(OPEN):
                return _Place("thinking", 0, start[len(OPEN) :])
            return replace(self, tail=tail) if OPEN.startswith(start) else _Place("after")
        if CLOSE in tail or CALL in tail:
            return _Place("after")
        return _Place("thinking", self.thought + 1, tail[-len(CALL) :])


class ThoughtfulGuide(Guide):
    """A guide whose answer may think first, but not for ever. `inner`: what the whole answer follows, if anything.

    `anything`: any token, and no end of the answer while it thinks. `close`: the tokens that end a think block.
    `piece`: a token's bytes.
    """

    def __init__(
        self,
        thoughts: Thoughts,
        inner: Guide | None,
        *,
        text: int,
        ends: int,
        close: Sequence[int],
        piece: Callable[[int], bytes],
    ) -> None:
        self._inner = inner
        self._budget = thoughts.budget
        self._anything = _allowed(text | ends)
        self._text = text
        self._close = tuple(close)
        self._piece = piece
        self._place = _Place("thinking" if thoughts.opened else "before")
        self._places: dict[Path, _Place] = {}

    def push(self, token: int) -> None:
        """`token` is part of the answer. It must be allowed, and no end token."""
        self._place = self._place_at((token,))
        self._places = {path[1:]: place for path, place in self._places.items() if path[:1] == (token,)}
        if self._inner is not None:
            self._inner.push(token)

    def after(self, path: Sequence[int] = ()) -> Allowed:
        """What may follow the answer and the tokens of `path`, which are allowed themselves. Raises as `Guide.after`"""
        place = self._place_at(tuple(path))
        allowed = self._anything if self._inner is None else self._inner.after(path)
        if place.side != "thinking" or allowed.ended:
            return allowed
        if (over := place.thought - self._budget) >= 0:
            closing = self._close[min(over, len(self._close) - 1)]
            if closing in allowed:
                return _allowed(1 << closing)
        bits = int.from_bytes(allowed.bits, "little") & self._text
        return _allowed(bits) if bits else allowed

    def _place_at(self, path: Path) -> _Place:
        if not path:
            return self._place
        if path not in self._places:
            self._places[path] = self._place_at(path[:-1]).then(self._piece(path[-1]))
        return self._places[path]


def _allowed(bits: int) -> Allowed:
    return Allowed(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), bits.bit_count(), False)
