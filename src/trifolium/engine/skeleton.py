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


def sketch(guide: Guide, tokenizer: Tokenizer, lead: Sequence[int], size: int) -> tuple[int | None, ...]:
    """The canvas of `size` positions after the answer and the literals `lead`: literals, and None for slots.

    It is shorter where the text ends earlier.
    """
    tokens: list[int | None] = []
    path = list(lead)
    while len(tokens) < size:
        allowed = guide.after(path)
        if allowed.ended:
            return tuple(tokens)
        if allowed.single is not None:
            tokens.append(allowed.single)
            path.append(allowed.single)
            continue
        common = _common(guide, tokenizer, path, allowed)
        if common is None:
            break
        tokens += common[0]
        path += common[1]
    tokens += [None] * (size - len(tokens))
    return tuple(tokens[:size])


def _common(
    guide: Guide, tokenizer: Tokenizer, path: Sequence[int], allowed: Allowed
) -> tuple[list[int | None], list[int]] | None:
    """A slot and the tokens up to the next: what all fillings share, and the first one. None if lengths differ."""
    fillings = options(guide, tokenizer, path, allowed)
    if not fillings or len({len(filling) for filling in fillings}) > 1:
        return None
    if len({guide.after([*path, *filling]).bits for filling in fillings}) > 1:
        return None
    shared = [row[0] if len(set(row)) == 1 else None for row in zip(*fillings, strict=True)]
    return shared, fillings[0]


def options(guide: Guide, tokenizer: Tokenizer, path: Sequence[int], allowed: Allowed) -> list[list[int]]:
    """What may fill a slot with few fillings: each with the literals after it. Empty where there are more than a few.

    Only those count that are tokenized as text usually is: not t-r-u-e where "true" is a token.
    """
    found = []
    for token in allowed.ids.tolist() if allowed.count <= MAX_OPTIONS else ():
        filling = [token, *guide.run([*path, token])]
        text = tokenizer.decode_bytes(filling, skip_special=True)
        if tokenizer.encode_within(text.decode("utf-8", "replace"))[:1] == [token]:
            found.append(filling)
    return found
