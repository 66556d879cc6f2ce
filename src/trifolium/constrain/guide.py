"""A request's way through its constraint: which tokens may come next, here and along any path of proposals.

Shapes: V vocabulary of the model, which may be larger than the tokenizer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from ..errors import ConstraintError

MAX_RUN = 64
"""Forced tokens that are looked up at once: more than a pass has rows for is of no use."""

Path = tuple[int, ...]


@dataclass(frozen=True)
class Allowed:
    """What may stand at one position: a mask over the vocabulary, one bit a token, lowest first.

    `ended`: the text is complete, and nothing can follow (end tokens neither: the answer is over without one). `count`:
    how many tokens may follow, end tokens included where the text may end here. `literal`, from `at` on: the tokens
    that have to follow, if there is no choice.
    """

    bits: bytes
    count: int
    ended: bool
    literal: Sequence[int] = field(default=(), compare=False, repr=False)
    at: int = field(default=0, compare=False, repr=False)

    def __contains__(self, token: int) -> bool:
        return token >> 3 < len(self.bits) and bool(self.bits[token >> 3] >> (token & 7) & 1)

    @cached_property
    def ids(self) -> npt.NDArray[np.int64]:
        """The allowed tokens, ascending."""
        data = np.frombuffer(self.bits, np.uint8)
        filled = np.flatnonzero(data)  # mostly few, of thousands
        bits = np.unpackbits(data[filled], bitorder="little").reshape(-1, 8)
        byte, bit = np.nonzero(bits)
        return np.asarray(filled[byte] * 8 + bit)

    @cached_property
    def single(self) -> int | None:
        """The only allowed token, if there is just one."""
        return int.from_bytes(self.bits, "little").bit_length() - 1 if self.count == 1 else None

    def among(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of `ids` are allowed."""
        if self.ended:
            return np.zeros(len(ids), bool)
        bits = np.frombuffer(self.bits, np.uint8)
        known = ids >> 3 < len(bits)
        where = np.where(known, ids >> 3, 0)
        bit = (bits[where] >> (ids & 7).astype(np.uint8)) & 1
        return np.asarray(known & (bit == 1))


_ENDED = Allowed(b"", 0, True)


class Guide:
    """Follows the tokens of one answer, and looks ahead along proposals without losing its place.

    `text`: the tokens that may appear in a text at all, as bits: no special tokens, no padding. `ends`: the end tokens
    that may follow it, as bits. `what` names the constraint in errors. What a guide says after a path is a function of
    the constraint and the tokens alone: how it was reached, by drafts or token by token, makes no difference. So it
    holds to a literal's tokens, once it has met its beginning, as long as the answer does; that spares all but the
    first mask of a literal.
    """

    def __init__(self, matcher: LLMatcher, text: int, ends: int = 0, what: str = "constraint") -> None:
        self._matcher = matcher
        self._text = text
        self._ends = ends
        self._size = ((text | ends).bit_length() + 7) // 8
        self._what = what
        self._at: list[int] = []  # what the matcher has consumed beyond the answer
        self._known: dict[Path, Allowed] = {}

    def push(self, token: int) -> None:
        """`token` is part of the answer. It must be allowed, and no end token."""
        self.after((token,))
        self._move((token,))
        del self._at[0]
        self._known = {path[1:]: allowed for path, allowed in self._known.items() if path[:1] == (token,)}

    def after(self, path: Sequence[int] = ()) -> Allowed:
        """What may follow the answer and the tokens of `path`, which are allowed themselves.

        Raises ConstraintError if nothing may and the text isn't complete, or if a limit of the matcher was hit.
        """
        key = tuple(path)
        if key not in self._known:
            self._known[key] = self._look(key)
        return self._known[key]

    @property
    def ended(self) -> bool:
        """Whether the answer is complete and nothing can follow."""
        return self.after().ended

    def run(self, path: Sequence[int] = (), limit: int = MAX_RUN) -> list[int]:
        """The tokens that must follow `path`, one after the other, as far as there is no choice; at most `limit`."""
        out = list(path)
        while len(out) - len(path) < limit:
            token = self.after(out).single
            if token is None:
                break
            out.append(token)
        return out[len(path) :]

    def _look(self, path: Path) -> Allowed:
        if path and self._ends >> path[-1] & 1:
            return _ENDED
        if path:
            before = self.after(path[:-1])
            if before.at + 1 < len(before.literal) and before.literal[before.at] == path[-1]:
                return self._forced(before.literal, before.at + 1)
        self._move(path)
        matcher = self._matcher
        if matcher.is_stopped() and not matcher.is_error():
            return _ENDED
        if literal := matcher.compute_ff_tokens():
            return self._forced(literal, 0)
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        self._check()
        bits = mask & (self._text | self._ends)
        if not mask & self._text:
            if matcher.is_accepting():
                return _ENDED
            raise ConstraintError(f"the {self._what} leaves no token to go on with, and the text isn't complete")
        return Allowed(bits.to_bytes(self._size, "little"), bits.bit_count(), False)

    def _forced(self, literal: Sequence[int], at: int) -> Allowed:
        bit = 1 << literal[at]
        if not bit & self._text:
            raise ConstraintError(f"the {self._what} asks for a special token, which no text may hold")
        return Allowed(bit.to_bytes(self._size, "little"), 1, False, literal, at)

    def _move(self, path: Path) -> None:
        """Bring the matcher to the end of `path`."""
        shared = 0
        while shared < min(len(path), len(self._at)) and path[shared] == self._at[shared]:
            shared += 1
        if back := len(self._at) - shared:
            self._matcher.rollback(back)
            del self._at[shared:]
        for token in path[shared:]:
            if not self._matcher.consume_token(token):
                self._check()
                raise ConstraintError(f"the {self._what} does not allow token {token}")
            self._at.append(token)

    def _check(self) -> None:
        if self._matcher.is_error():
            fault = self._matcher.get_error().strip().splitlines()[0]
            raise ConstraintError(f"the {self._what} can't be followed any further: {fault}")
