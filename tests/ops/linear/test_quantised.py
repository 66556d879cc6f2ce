"""Quantised weights come back as they were: stored integers and scales are those that quantising afresh would give."""

from __future__ import annotations

import pytest
import torch

from trifolium.ops.linear.quantised import LIMIT, QuantisedWeight, quantise
from trifolium.ops.linear.reference import quantise_rows

LARGEST = torch.finfo(torch.float32).max
TINY = torch.finfo(torch.float32).tiny


def same(a: QuantisedWeight, b: QuantisedWeight) -> bool:
    return torch.equal(a.values, b.values) and torch.equal(a.scale, b.scale)


def test_every_scale_there_is_survives_the_way_back() -> None:
    """All mantissas of a float32; exponents shift scale and weight alike, but for the ends, which the next test has."""
    largest = (torch.arange(1 << 23, dtype=torch.int32) + (127 << 23)).view(torch.float32)
    scale = quantise_rows(largest[:, None], LIMIT)[1]
    back = quantise_rows((scale * LIMIT)[:, None], LIMIT)[1]
    assert torch.equal(back, scale)


@pytest.mark.parametrize("size", [LARGEST, LARGEST / 2, 1.0, 2 * LIMIT * TINY, LIMIT * TINY, TINY, 0.0])
def test_rows_of_any_size_come_back(size: float) -> None:
    rows = torch.randn(43, 29, generator=torch.Generator().manual_seed(1))
    rows = (rows / rows.abs().amax(1, keepdim=True)).mul(size)
    quantised = quantise(rows)
    plain = quantised.dequantise()
    assert plain.isfinite().all()
    assert same(quantise(plain), quantised)


def test_all_integers_come_back() -> None:
    values = torch.arange(-LIMIT, LIMIT + 1, dtype=torch.int8).repeat(64, 1)
    scale = torch.rand(64, generator=torch.Generator().manual_seed(2)) + 0.01
    scale = quantise_rows((scale * LIMIT)[:, None], LIMIT)[1]  # scales that quantising can give
    quantised = QuantisedWeight(values, scale)
    assert same(quantise(quantised.dequantise()), quantised)


def test_experts_are_quantised_row_by_row() -> None:
    """Leading dimensions: each expert as if it stood alone, from any float dtype."""
    weight = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(3)).bfloat16()
    stacked = quantise(weight)
    assert stacked.shape == (3, 5, 7) and stacked.scale.shape == (3, 5)
    assert stacked.nbytes == 3 * 5 * 7 + 3 * 5 * 4
    for i in range(3):
        alone = quantise(weight[i])
        assert same(alone, QuantisedWeight(stacked.values[i], stacked.scale[i]))
        error = (alone.dequantise() - weight[i].float()).abs()
        assert (error <= 0.501 * alone.scale[:, None]).all()
    assert same(quantise(stacked.dequantise()), stacked)
