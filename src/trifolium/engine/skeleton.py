"""Where literals will stand on a canvas, as far as that can be told before the slots between them are filled.

A slot's end is known where all its likely fillings are equally long and lead to the same literals: truth values, single
digits, names from a list. Such slots are previewed all at once, with the literals between them in place. What is wrong
here costs passes and never an answer: the constraint is asked again about every token that is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..constrain import Allowed, Guide
from ..text import Tokenizer

MAX_OPTIONS = 48
"""Slots where more tokens are allowed aren't looked through."""


class Slots:
    """Looks ahead from slot to slot, for one request."""

    def __init__(self, guide: Guide, tokenizer: Tokenizer) -> None:
        self._guide = guide
        self._tokenizer = tokenizer
        self._usual: dict[bytes, tuple[int, ...]] = {}

    def sketch(self, lead: Sequence[int], size: int) -> tuple[int | None, ...]:
        """The canvas of `size` positions after the answer and the literals `lead`: literals, and None for slots.

        It is shorter where the text ends earlier.
        """
        tokens: list[int | None] = []
        path = list(lead)
        while len(tokens) < size:
            allowed = self._guide.after(path)
            if allowed.ended:
                return tuple(tokens)
            if allowed.single is not None:
                tokens.append(allowed.single)
                path.append(allowed.single)
                continue
            common = self._common(path) if len(tokens) + 1 < size else None
            if common is None:
                break
            tokens += common[0]
            path += common[1]
        tokens += [None] * (size - len(tokens))
        return tuple(tokens[:size])

    def options(self, path: Sequence[int]) -> list[list[int]]:
        """What may fill a slot with few fillings, each with the literals after it; empty for slots with more.

        Only fillings count that are tokenized as text usually is: not t-r-u-e where "true" is a token.
        """
        allowed = self._guide.after(path)
        if allowed.count > MAX_OPTIONS or allowed.ended:
            return []
        if allowed.bits not in self._usual:  # slots of one kind have the same options
            self._usual[allowed.bits] = tuple(token for token in allowed.ids.tolist() if self._is_usual(path, token))
        return [[token, *self._guide.run([*path, token])] for token in self._usual[allowed.bits]]

    def _is_usual(self, path: Sequence[int], token: int) -> bool:
        text = self._tokenizer.decode_bytes([token, *self._guide.run([*path, token])], skip_special=True)
        return self._tokenizer.encode_within(text.decode("utf-8", "replace"))[:1] == [token]

    def _common(self, path: Sequence[int]) -> tuple[list[int | None], list[int]] | None:
        """A slot and the tokens up to the next: what all fillings share, and the first one. None if lengths differ."""
        fillings = self.options(path)
        if not fillings or len({len(filling) for filling in fillings}) > 1:
            return None
        if len({self._after(path, filling).bits for filling in fillings}) > 1:
            return None
        shared = [row[0] if len(set(row)) == 1 else None for row in zip(*fillings, strict=True)]
        return shared, fillings[0]

    def _after(self, path: Sequence[int], filling: Sequence[int]) -> Allowed:
        return self._guide.after([*path, *filling])
