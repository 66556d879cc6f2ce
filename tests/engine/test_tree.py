"""Layouts of a pass: what is verified, what is previewed, in how many rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trifolium.engine.costs import Budget, PassCosts
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


def worths(block: int) -> list[float]:
    """What canvases of up to `block` rows save, one half of what is left a row."""
    return [1 - 0.5**rows for rows in range(block + 1)]


def costs(**seconds: float) -> PassCosts:
    """A pass of n rows took `_n=seconds`; there is a token a second."""
    costs = PassCosts()
    for rows, value in seconds.items():
        costs.observe(int(rows[1:]), value, value)
    return costs


@given(trees(), st.integers(1, 60), st.integers(0, 6), st.integers(0, 9), st.sampled_from([None, 0.001, 0.1, 3.0]))
def test_layouts_are_trees_within_their_budget(
    draft: Draft, rows: int, block: int, useful: int, slope: float | None
) -> None:
    priced = None if slope is None else costs(_1=1.0, _64=1.0 + 63 * slope)
    layout = choose(draft, draft.confidences, Budget(rows, 3, priced), worths(block), useful)
    kept = layout.draft
    assert 1 + len(kept.tokens) + layout.block * len(layout.previewed) <= rows
    assert bool(layout.previewed) == bool(layout.block) and layout.block <= block
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
    layout = choose(draft, draft.confidences, Budget(2), [0.0], 9)
    assert layout.draft.tokens == (1,)
    assert layout.chances == pytest.approx((0.4, 0.6))
    assert layout.child(0, 1) == 1 and layout.child(0, 2) is None
    whole = choose(draft, draft.confidences, Budget(4 + 4 * 3), worths(3), 9)
    assert whole.draft.tokens == (1, 3, 2)
    assert whole.parents == (-1, 0, 1, 0)
    assert whole.previewed == (0, 1, 2, 3)
    assert all(whole.chances[row] >= MIN_CHANCE for row in whole.previewed[1:])


def test_rows_are_taken_as_far_as_they_pay() -> None:
    """The dearer a row, the fewer; where a row costs as much as a pass, none but those that are nearly sure."""
    draft = Draft((1, 2, 3, 4), (0.9, 0.7, 0.5, 0.4), "s", "k")

    def rows(slope: float) -> tuple[int, int]:
        layout = choose(draft, draft.confidences, Budget(60, 0, costs(_1=1.0, _64=1 + 63 * slope)), worths(4), 9)
        return len(layout.draft.tokens), layout.block * len(layout.previewed)

    taken = [rows(slope) for slope in (0.0, 0.01, 0.05, 0.2, 0.5, 0.95)]
    assert taken[0] == (4, 20) and taken[-1] == (0, 0)
    assert taken == sorted(taken, reverse=True)
    assert 0 < sum(taken[2]) < sum(taken[1]) <= 24


def test_one_good_row_among_bad_ones_of_a_busy_pass() -> None:
    """What counts is what a row adds to the pass that others have filled already."""
    draft = Draft((1,), (0.6,), "s", "k")
    curve = costs(_1=1.0, _16=1.0, _64=4.0)
    assert choose(draft, draft.confidences, Budget(9, 2, curve), [0.0], 9).draft.tokens == (1,)
    # Beyond sixteen rows each one costs 1/16 of a pass of one: still worth it; at ten times the rate, no more.
    assert choose(draft, draft.confidences, Budget(9, 40, curve), [0.0], 9).draft.tokens == (1,)
    for _ in range(200):
        curve.observe(64, 4.0, 64.0)
    assert choose(draft, draft.confidences, Budget(9, 40, curve), [0.0], 9).draft.tokens == ()
