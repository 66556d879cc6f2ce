"""Drafts under a constraint: what it forbids is dropped, and what it forces is put in, along every path of a draft."""

from __future__ import annotations

import heapq

from ..constrain import Guide
from .drafts import Draft
from .tree import MIN_REACH

MAX_FITTED = 64
"""Tokens of a draft after fitting. Each one takes a token mask; the likeliest come first."""


class ForcedDrafts:
    """What the constraint leaves no choice about: always accepted."""

    def __init__(self, guide: Guide) -> None:
        self._guide = guide

    def push(self, token: int) -> None:
        pass  # the request's guide follows the answer by itself

    def propose(self, limit: int) -> Draft:
        run = self._guide.run(limit=min(limit, MAX_FITTED))
        return Draft(tuple(run), (1.0,) * len(run), "forced", "forced", forced=frozenset(range(len(run))))


def fit(draft: Draft, guide: Guide, limit: int) -> Draft:
    """The draft as the constraint allows it, at most `limit` deep: grown best first, by the chance to be reached.

    Where only one token may follow, it does, with what the draft has after it (or nothing more of the draft, if it
    expected another token there); elsewhere the draft's tokens are kept as far as they are allowed.
    """
    children: dict[int, list[int]] = {}
    for i in range(len(draft.tokens)):
        children.setdefault(draft.parent(i), []).append(i)
    tokens, confidences, parents, forced = list[int](), list[float](), list[int](), set[int]()
    # (-reach, order, old index or None, new index, path)
    queue: list[tuple[float, int, int | None, int, tuple[int, ...]]] = [(-1.0, 0, -1, -1, ())]
    while queue and len(tokens) < MAX_FITTED:
        negative, _, old, new, path = heapq.heappop(queue)
        if len(path) >= limit:
            continue
        allowed = guide.after(path)
        following = children.get(old, []) if old is not None else []
        if allowed.single is not None:
            same = next((i for i in following if draft.tokens[i] == allowed.single), None)
            grown: list[tuple[int | None, int, float]] = [(same, allowed.single, 1.0)]
            forced.add(len(tokens))
        else:
            grown = [(i, draft.tokens[i], draft.confidences[i]) for i in following if draft.tokens[i] in allowed]
        for index, token, confidence in grown:
            if negative * confidence > -MIN_REACH:
                continue
            tokens.append(token)
            confidences.append(confidence)
            parents.append(new)
            at = len(tokens) - 1
            heapq.heappush(queue, (negative * confidence, at + 1, index, at, (*path, token)))
    return Draft(tuple(tokens), tuple(confidences), draft.source, draft.kind, tuple(parents), frozenset(forced))
