"""Which drafts a pass verifies and which canvases it previews, within a budget of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .drafts import Draft, reach

MIN_REACH = 0.02
"""Drafts less likely than this to be accepted, with all that they follow, are not worth a row."""

MIN_CHANCE = 0.01
"""Canvases less likely than this to come true are not previewed; where one does, the next pass is a plain one."""

MIN_BLOCK = 2
"""A canvas that the row budget cuts below this is not worth its rows."""

LEAST_WORTH = 0.25
"""Tokens that a preview is taken to save in the next pass, at least: drafts may be rare just now, but not for ever."""


@dataclass(frozen=True)
class Layout:
    """Commit rows of a pass: row 0 is the last emitted token, row i + 1 the draft's token i.

    `chances` [rows]: that a row is the last one that is accepted. `previewed`: rows that a canvas follows, ascending.
    """

    draft: Draft
    chances: tuple[float, ...]
    previewed: tuple[int, ...]

    def child(self, row: int, token: int) -> int | None:
        """The row that holds `token` after `row`."""
        return next((i + 1 for i in self.draft.children(row - 1) if self.draft.tokens[i] == token), None)

    @property
    def parents(self) -> tuple[int, ...]:
        """For each row, the row that it follows; -1 for the first."""
        return (-1, *(self.draft.parent(i) + 1 for i in range(len(self.draft.tokens))))


def choose(draft: Draft, estimates: Sequence[float], rows: int, block: int, useful_depth: int) -> Layout:
    """The layout that promises most tokens, in this pass and, through its previews, in the next.

    `rows`: the budget, the last emitted token included. `block`: rows of a canvas (0: no previews). Canvases at depths
    beyond `useful_depth` are of no use. Drafts are taken in order of their chance to be accepted; for each number of
    them, canvases go to the rows where the pass most likely ends.
    """
    reached = reach(draft, estimates)
    # Stable: what a token follows is at least as likely and comes first, so every beginning is a whole tree.
    order = sorted((i for i, r in enumerate(reached) if r >= MIN_REACH), key=lambda i: -reached[i])
    worth = max(LEAST_WORTH, sum(reached[i] for i in order))

    def value(count: int) -> float:
        layout = layouts[count]
        return sum(reached[i] for i in order[:count]) + worth * sum(layout.chances[row] for row in layout.previewed)

    counts = range(min(len(order), rows - 1) + 1)
    layouts = [_lay_out(draft, estimates, order[:count], rows, block, useful_depth) for count in counts]
    return layouts[max(counts, key=value)]


def _lay_out(
    draft: Draft, estimates: Sequence[float], chosen: Sequence[int], rows: int, block: int, useful_depth: int
) -> Layout:
    ordered = _depth_first(draft, estimates, set(chosen))
    kept = draft.keep(ordered)
    share = [estimates[i] for i in ordered]
    reached = [1.0, *reach(kept, share)]
    ends = list(reached)
    for i in range(len(ordered)):
        ends[kept.parent(i) + 1] -= reached[i + 1]
    depths = [0, *kept.depths()]
    room = (rows - 1 - len(ordered)) // block if block else 0
    likely = [row for row in sorted(range(len(ends)), key=lambda row: -ends[row]) if depths[row] <= useful_depth]
    previewed = [row for i, row in enumerate(likely[:room]) if i == 0 or ends[row] >= MIN_CHANCE]
    return Layout(kept, tuple(ends), tuple(sorted(previewed)))


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
