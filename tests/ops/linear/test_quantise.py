"""Properties of row quantisation that hold for every float32 row there is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trifolium.ops.linear.reference import quantise_rows

TINY = torch.finfo(torch.float32).tiny
ROWS = st.integers(1, 24).flatmap(
    lambda size: st.lists(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=size, max_size=size),
        min_size=1,
        max_size=4,
    )
)
LIMITS = st.sampled_from([63, 127])
SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)


@SETTINGS
@given(rows=ROWS, limit=LIMITS)
def test_every_value_comes_back_within_half_a_step(rows: list[list[float]], limit: int) -> None:
    x = torch.tensor(rows)
    q, scale = quantise_rows(x, limit)
    assert q.dtype == torch.int8
    assert scale.dtype == torch.float32
    assert q.abs().max() <= limit
    assert scale.isfinite().all()
    error = (x.double() - q.double() * scale.double()[:, None]).abs()
    step = scale.double().clamp(min=2 * limit * TINY)[:, None]  # below it, a row counts as zeros
    assert (error <= 0.5001 * step).all()


@SETTINGS
@given(rows=ROWS, limit=LIMITS)
def test_the_largest_value_gets_the_largest_integer(rows: list[list[float]], limit: int) -> None:
    x = torch.tensor(rows)
    q, scale = quantise_rows(x, limit)
    for row, integers, s in zip(x, q, scale, strict=True):
        if s > 0:
            assert integers.abs().max() == limit
            at = int(row.abs().argmax())
            assert integers[at] == math.copysign(limit, row[at])
        else:
            assert row.abs().max() < 1.01 * limit * TINY
            assert not integers.any()


@SETTINGS
@given(rows=ROWS, limit=LIMITS)
def test_odd_and_row_by_row(rows: list[list[float]], limit: int) -> None:
    """-x gives -q, and a row's integers don't depend on the other rows."""
    x = torch.tensor(rows)
    q, scale = quantise_rows(x, limit)
    negative, same_scale = quantise_rows(-x, limit)
    assert torch.equal(negative, -q)
    assert torch.equal(same_scale, scale)
    for row, integers, s in zip(x, q, scale, strict=True):
        alone, alone_scale = quantise_rows(row[None], limit)
        assert torch.equal(alone[0], integers)
        assert torch.equal(alone_scale[0], s)


@pytest.mark.parametrize("value", [1e-45, 1e-40, 1e-38, 7e-37, 1e-30, 1.0, 1e30, 3.4e38])
def test_sizes_from_denormal_to_largest(value: float) -> None:
    q, scale = quantise_rows(torch.tensor([[value, 0.0, -value, value / 2]]), 127)
    if scale > 0:
        assert q.tolist() == [[127, 0, -127, 64]]
        assert float(scale) == pytest.approx(value / 127)
    else:
        assert value < 127 * TINY
        assert q.tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_rows_that_are_not_finite(bad: float) -> None:
    x = torch.tensor([[1.0, 2.0, 5.0], [1.0, bad, 2.0], [0.0, 0.0, 0.0]])
    q, scale = quantise_rows(x, 63)
    assert q.tolist() == [[13, 25, 63], [0, 0, 0], [0, 0, 0]]
    assert scale[1].isnan()
    assert scale[[0, 2]].tolist() == pytest.approx([5 / 63, 0.0])


def test_ties_round_to_even() -> None:
    q, _ = quantise_rows(torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5]]), 127)
    assert q.tolist() == [[127, 0, 2, 2, 0, -2]]


def test_no_rows() -> None:
    q, scale = quantise_rows(torch.empty(0, 5), 127)
    assert q.shape == (0, 5)
    assert scale.shape == (0,)
