"""Which drafts a pass verifies and which canvases it previews, for what rows cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .costs import Budget
from .drafts import Draft, reach

MIN_REACH = 0.02
"""Drafts less likely than this to be accepted, with all that they follow, are not worth a row."""

MIN_CHANCE = 0.01
"""Canvases less likely than this to come true are not previewed; where one does, the next pass is a plain one."""

LOOK_AHEAD = 3
"""Drafts that `choose` looks beyond the best number of them so far."""


@dataclass(frozen=True)
class Layout:
    """Commit rows of a pass: row 0 is the last emitted token, row i + 1 the draft's token i.

    `chances` [rows]: that a row is the last one that is accepted. `previewed`: rows that a canvas of `block` mask rows
    follows, ascending.
    """

    draft: Draft
    chances: tuple[float, ...]
    previewed: tuple[int, ...]
    block: int = 0

    def child(self, row: int, token: int) -> int | None:
        """The row that holds `token` after `row`."""
        return next((i + 1 for i in self.draft.children(row - 1) if self.draft.tokens[i] == token), None)

    @property
    def parents(self) -> tuple[int, ...]:
        """For each row, the row that it follows; -1 for the first."""
        return (-1, *(self.draft.parent(i) + 1 for i in range(len(self.draft.tokens))))


def choose(
    draft: Draft, estimates: Sequence[float], budget: Budget, worths: Sequence[float], useful_depth: int
) -> Layout:
    """The layout that promises most tokens, in this pass and, through its previews, in the next, less what it costs.

    `worths`: what a canvas of 0, 1, 2, ... mask rows is expected to save once it comes true; just (0.0,) for no
    previews. Canvases at depths beyond `useful_depth` are of no use. Drafts are taken in order of their chance to be
    accepted; for each number of them, canvases go to the rows where the pass most likely ends.
    """
    reached = reach(draft, estimates)
    # Stable: what a token follows is at least as likely and comes first, so every beginning is a whole tree.
    order = sorted((i for i, r in enumerate(reached) if r >= MIN_REACH), key=lambda i: -reached[i])
    depths = draft.depths()
    ends = {-1: 1.0}  # that the pass ends with a token, of those taken so far
    best, best_value = (0, 0, tuple[int, ...]()), -math.inf
    gained = 0.0
    for count in range(min(len(order), budget.rows - 1) + 1):
        if count:
            taken = order[count - 1]
            gained += reached[taken]
            ends[draft.parent(taken)] -= reached[taken]
            ends[taken] = reached[taken]
        likely = sorted(ends, key=lambda i: -ends[i])
        likely = [i for i in likely if (depths[i] if i >= 0 else 0) <= useful_depth]
        for block, worth in enumerate(worths):
            previewed, value = _canvases(likely, ends, 1 + count, block, worth, budget)
            if gained + value > best_value:
                best, best_value = (count, block, previewed), gained + value
        # Later drafts bring less each, for rows that cost no less: no need to look far beyond the best.
        if count > best[0] + LOOK_AHEAD:
            break
    return _lay_out(draft, estimates, order[: best[0]], best[1], best[2])


def _canvases(
    likely: Sequence[int], ends: Mapping[int, float], rows: int, block: int, worth: float, budget: Budget
) -> tuple[tuple[int, ...], float]:
    """Which drafts (-1: the last emitted token) canvases of `block` rows follow; their worth less all rows' price."""
    chosen: list[int] = []
    value, price = 0.0, budget.price(rows)
    worth -= budget.proposal
    if block:
        for i in likely:
            more = budget.price(rows + block)
            if rows + block > budget.rows or (chosen and ends[i] < MIN_CHANCE) or worth * ends[i] <= more - price:
                break
            chosen.append(i)
            rows, value, price = rows + block, value + worth * ends[i], more
    return tuple(chosen), value - price


def _lay_out(
    draft: Draft, estimates: Sequence[float], chosen: Sequence[int], block: int, previewed: Sequence[int]
) -> Layout:
    ordered = _depth_first(draft, estimates, set(chosen))
    kept = draft.keep(ordered)
    reached = [1.0, *reach(kept, [estimates[i] for i in ordered])]
    ends = list(reached)
    for i in range(len(ordered)):
        ends[kept.parent(i) + 1] -= reached[i + 1]
    rows = {-1: 0} | {index: i + 1 for i, index in enumerate(ordered)}
    return Layout(kept, tuple(ends), tuple(sorted(rows[i] for i in previewed)), block if previewed else 0)


def _depth_first(draft: Draft, estimates: Sequence[float], chosen: set[int]) -> list[int]:
    """The chosen tokens so that each is followed by its likeliest child: the likeliest path is one run of rows."""
    children: dict[int, list[int]] = {}
    for i in sorted(chosen, key=lambda i: estimates[i]):
        children.setdefault(draft.parent(i), []).append(i)
    out, stack = list[int](), list(children.get(-1, []))
    while stack:
        out.append(node := stack.pop())
        stack += children.get(node, [])
    return out
