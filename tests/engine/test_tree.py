"""Layouts of a pass: what is verified, what is previewed, in how many rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trifolium.engine.drafts import Draft, reach
from trifolium.engine.tree import MIN_CHANCE, MIN_REACH, choose


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    """Random trees with distinct siblings and confidences of siblings that sum to at most 1."""
    size = draw(st.integers(0, 14))
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(size))
    siblings = [parents[:i].count(parent) for i, parent in enumerate(parents)]
    confidences = tuple(draw(st.floats(0.05, 1.0)) / parents.count(parent) for parent in parents)
    return Draft(tuple(siblings), confidences, "s", "k", parents)


@given(trees(), st.integers(1, 60), st.integers(0, 6), st.integers(0, 9))
def test_layouts_are_trees_within_their_budget(draft: Draft, rows: int, block: int, useful: int) -> None:
    layout = choose(draft, draft.confidences, rows, block, useful)
    kept = layout.draft
    assert 1 + len(kept.tokens) + block * len(layout.previewed) <= rows or not block
    assert 1 + len(kept.tokens) <= rows
    assert all(kept.parent(i) < i for i in range(len(kept.tokens)))
    assert all(r >= MIN_REACH for r in reach(kept, kept.confidences))
    # Every kept path is a path of the draft.
    originals = {_path(draft, i) for i in range(len(draft.tokens))}
    assert {_path(kept, i) for i in range(len(kept.tokens))} <= originals
    assert sum(layout.chances) == pytest.approx(1.0)
    depths = [0, *kept.depths()]
    assert all(depths[row] <= useful for row in layout.previewed)
    assert list(layout.previewed) == sorted(set(layout.previewed))
    if block == 0:
        assert layout.previewed == ()
    # A run of rows is as long as can be: the child that follows its parent's row is the likeliest one.
    for row in range(len(kept.tokens)):
        if children := kept.children(row - 1):
            assert min(children) == row
            assert kept.confidences[row] == max(kept.confidences[i] for i in children)


def _path(draft: Draft, index: int) -> tuple[tuple[int, float], ...]:
    parent = draft.parent(index)
    before = () if parent < 0 else _path(draft, parent)
    return (*before, (draft.tokens[index], draft.confidences[index]))


def test_a_small_budget_goes_to_the_likeliest() -> None:
    draft = Draft((1, 2, 3), (0.6, 0.3, 0.9), "s", "k", (-1, -1, 0))
    layout = choose(draft, draft.confidences, 2, 0, 9)
    assert layout.draft.tokens == (1,)
    assert layout.chances == pytest.approx((0.4, 0.6))
    assert layout.child(0, 1) == 1 and layout.child(0, 2) is None
    whole = choose(draft, draft.confidences, 4 + 4 * 3, 3, 9)
    assert whole.draft.tokens == (1, 3, 2)
    assert whole.parents == (-1, 0, 1, 0)
    assert whole.previewed == (0, 1, 2, 3)
    assert all(whole.chances[row] >= MIN_CHANCE for row in whole.previewed[1:])
