"""Drafts under a constraint: what it forbids is dropped, and what it forces is put in, along every path of a draft."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from ..constrain import Guide
from ..text import Tokenizer
from .drafts import Draft, GrowingDraft
from .skeleton import Slots
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


class OptionDrafts:
    """Every way to fill slots that have few: truth values, names from a list, and the literals between them.

    It doesn't know which is right, so it takes many rows for each token that is accepted: the decoder says by
    `affordable` whether rows are cheap enough to look.
    """

    def __init__(self, guide: Guide, tokenizer: Tokenizer) -> None:
        self._guide = guide
        self._slots = Slots(guide, tokenizer)
        self.affordable = False

    def push(self, token: int) -> None:
        pass  # the request's guide follows the answer by itself

    def propose(self, limit: int) -> Draft:
        draft = GrowingDraft()
        if not self.affordable:
            return draft.draft("options")
        lead = self._guide.run(limit=min(limit, MAX_FITTED))
        ends = [(-1.0, draft.chain(lead, 1.0, -1, forced_from=0), tuple(lead))]
        while ends and len(draft.tokens) < MAX_FITTED:
            negative, node, path = heapq.heappop(ends)
            fillings = self._slots.options(path)
            for filling in fillings:
                share = 1.0 / len(fillings)
                if -negative * share >= MIN_REACH and len(path) + len(filling) <= limit:
                    end = draft.chain(filling, share, node, forced_from=1)
                    heapq.heappush(ends, (negative * share, end, (*path, *filling)))
        return draft.draft("options")


def fitted(guide: Guide) -> Callable[[Draft, int], Draft]:
    """`fit` under one constraint."""
    return lambda draft, limit: fit(draft, guide, limit)


def fit(draft: Draft, guide: Guide, limit: int) -> Draft:
    """The draft as the constraint allows it, at most `limit` deep: grown best first, by the chance to be reached.

    Where only one token may follow, it does, with what the draft has after it (or nothing more of the draft, if it
    expected another token there); elsewhere the draft's tokens are kept as far as they are allowed.
    """
    children: dict[int, list[int]] = {}
    for i in range(len(draft.tokens)):
        children.setdefault(draft.parent(i), []).append(i)
    grown = GrowingDraft()
    # (-reach, order, old index or None, new index, path)
    queue: list[tuple[float, int, int | None, int, tuple[int, ...]]] = [(-1.0, 0, -1, -1, ())]
    while queue and len(grown.tokens) < MAX_FITTED:
        negative, _, old, new, path = heapq.heappop(queue)
        if len(path) >= limit:
            continue
        allowed = guide.after(path)
        following = children.get(old, []) if old is not None else []
        if allowed.single is not None:
            same = next((i for i in following if draft.tokens[i] == allowed.single), None)
            next_: list[tuple[int | None, int, float]] = [(same, allowed.single, 1.0)]
        else:
            next_ = [(i, draft.tokens[i], draft.confidences[i]) for i in following if draft.tokens[i] in allowed]
        for index, token, confidence in next_:
            if negative * confidence > -MIN_REACH:
                continue
            at = grown.add(token, confidence, new, forced=allowed.single is not None)
            heapq.heappush(queue, (negative * confidence, at + 1, index, at, (*path, token)))
    return grown.draft(draft.source, draft.kind)
