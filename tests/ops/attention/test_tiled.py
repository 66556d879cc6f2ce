"""Fast attention against the float64 definition, and the bits of its rows."""

from __future__ import annotations

import pytest
import torch

from trifolium.ops.attention import attend_causal_exact, attend_masked
from trifolium.ops.attention.reference import attend
from trifolium.ops.attention.tiled import GRID

SHAPES = [(1, 1, 8), (4, 2, 10), (6, 2, 14), (8, 2, 16), (9, 3, 64), (5, 5, 6), (3, 1, 22)]
"""(query heads, key heads, head size): groups of 1, 2, 3 and 4."""
STARTS = (0, 1, 3, 60, 63, 64, 65, 126, 200)


def tensors(n: int, heads: int, kv_heads: int, d: int, cells: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n * cells + heads)
    q, k = torch.randn(n, heads, d, generator=generator), torch.randn(kv_heads, cells, d, generator=generator)
    return q, k, torch.randn(kv_heads, cells, d, generator=generator)


def whole_cells(end: int) -> int:
    return -(-end // GRID) * GRID


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("start", STARTS)
def test_causal_rows_are_the_definition(start: int, shape: tuple[int, int, int]) -> None:
    for n in (1, 3, 4, 5, 70):
        q, k, v = tensors(n, *shape, cells=whole_cells(start + n) + 2 * GRID)
        visible = torch.arange(k.shape[1]) <= start + torch.arange(n)[:, None]
        got = attend_causal_exact(q, k, v, start)
        assert got.shape == q.shape
        assert torch.allclose(got, attend(q, k, v, visible), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_any_call(shape: tuple[int, int, int]) -> None:
    """Alone, at any offset in a call, and with any capacity behind it."""
    n = 2 * GRID + 9
    q, k, v = tensors(n, *shape, cells=whole_cells(n) + GRID)
    expected = torch.cat([attend_causal_exact(q[i : i + 1].clone(), k, v, i) for i in range(n)])
    tight = [t[:, : whole_cells(n)].contiguous() for t in (k, v)]
    for start in (0, 1, 2, 3, 5, 61, 64, 66):
        for count in (2, 3, 4, 7, n - start):
            for keys, values in ((k, v), tight):
                got = attend_causal_exact(q[start : start + count], keys, values, start)
                assert torch.equal(got, expected[start : start + count])


def test_no_rows() -> None:
    q, k, v = tensors(1, 6, 2, 14, cells=GRID)
    assert attend_causal_exact(q[:0], k, v, 5).shape == (0, 6, 14)


def test_unwritten_cells_weigh_nothing() -> None:
    q, k, v = tensors(3, 6, 2, 14, cells=GRID)
    expected = attend_causal_exact(q, k, v, 7)
    for garbage in (1e30, -3e38):
        k[:, 10:], v[:, 10:] = garbage, garbage
        assert torch.equal(attend_causal_exact(q, k, v, 7), expected)


def test_large_scores_stay_finite() -> None:
    q, k, v = tensors(5, 6, 2, 14, cells=GRID)
    q, k = q * 1e4, k * 1e4
    visible = torch.arange(GRID) <= 20 + torch.arange(5)[:, None]
    got = attend_causal_exact(q, k, v, 20)
    assert torch.allclose(got, attend(q, k, v, visible), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_masked_rows_are_the_definition(shape: tuple[int, int, int]) -> None:
    for n, cells in ((1, 1), (1, 7), (5, 64), (33, 97), (4, 300)):
        q, k, v = tensors(n, *shape, cells=cells)
        visible = torch.rand(n, cells, generator=torch.Generator().manual_seed(cells)) < 0.4
        visible[:, cells // 2] = True
        assert torch.allclose(attend_masked(q, k, v, visible), attend(q, k, v, visible), rtol=1e-5, atol=1e-5)
