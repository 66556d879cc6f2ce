"""Packed products in every format: values, bits that depend on nothing but the row, sums that can't overflow."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from random_models import with_threads
from trifolium.ops import native
from trifolium.ops.linear import PackedLinear
from trifolium.ops.linear.quantised import GROUP, quantise, quantise_groups
from trifolium.ops.linear.reference import linear

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no kernels: {native.native().why}")

DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.int4]
SHAPES = [(1, 1), (2, 3), (31, 17), (32, 16), (33, 40), (129, 97), (576, 192), (1001, 65), (1536, 33)]
"""(inputs, outputs)."""


def tensors(inputs: int, outputs: int, rows: int = 23) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(inputs)
    x, w = torch.randn(rows, inputs, generator=generator), torch.randn(outputs, inputs, generator=generator)
    return x * torch.rand(rows, 1, generator=generator).exp2() * 3, w * 0.1, torch.randn(outputs, generator=generator)


def rounded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight as the format holds it."""
    if dtype == torch.int8:
        return quantise(weight).dequantise()
    return quantise_groups(weight).dequantise() if dtype == torch.int4 else weight.to(dtype).float()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packed_products_are_those_of_the_rounded_weight(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """What is left is the rounding of inputs: none, 15 bits or so for int8, 7 bits for each group in int4."""
    x, w, b = tensors(*shape)
    w = rounded(w, dtype)
    size = x.abs() @ w.abs().T
    tolerance = {torch.int8: 1e-4, torch.int4: 1 / 127}.get(dtype, 1e-6)
    for bias in (None, b):
        kernel = PackedLinear(w, bias, dtype)
        assert kernel.exact and not kernel.tiled
        expected = linear(x, w, bias)
        assert ((kernel(x, 0, None) - expected).abs() <= tolerance * size + 1e-6).all()
        assert kernel(x[:0], 0, None).shape == (0, shape[1])
    assert kernel.nbytes < w.numel() * 4 + 64 * 16 * (w.shape[1] + 32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (33, 40), (129, 97), (1001, 65)], ids=str)
def test_a_packed_rows_bits_depend_on_nothing_else(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, w, b = tensors(*shape)
    kernel = PackedLinear(w, b, dtype)
    alone = torch.cat([kernel(row[None], 1, None) for row in x])
    for threads, n in itertools.product((1, 2, 3), (1, 2, 3, 4, 5, 6, 7, 12, 13, 23)):
        assert torch.equal(with_threads(threads, lambda n=n: kernel(x[:n], 0, None)), alone[:n])
    assert torch.equal(kernel(x.flip(0), 0, None), alone.flip(0))


@pytest.mark.parametrize("inputs", [1, 2, 31, 64, 255, 1025, 2048, 9000])
def test_int8_sums_hold_the_largest_values(inputs: int) -> None:
    """Rows and weights of only the largest integers, in every sign: sums are exact up to the last scaling."""
    patterns = [torch.tensor(p).repeat(inputs // 2 + 1)[:inputs] for p in itertools.product((1.0, -1.0), repeat=2)]
    rows = torch.stack(patterns)
    assert torch.allclose(PackedLinear(rows, None, torch.int8)(rows, 0, None), rows @ rows.T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_int4_sums_hold_the_largest_values(sign: float) -> None:
    """All weights of a group at 15 but one at 0, all inputs at +-127: what sixteen bits just hold."""
    w = torch.full((17, 3 * GROUP), 15.0)
    w[:, ::GROUP] = 0.0
    x = torch.full((7, 3 * GROUP), sign)
    assert torch.allclose(PackedLinear(w, None, torch.int4)(x, 0, None), x @ w.T, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_spoils_itself_only(bad: float, dtype: torch.dtype) -> None:
    x, w, b = tensors(129, 97)
    kernel = PackedLinear(w, b, dtype)
    expected = kernel(x, 0, None)
    for column in (17, 128):
        broken = x.clone()
        broken[4, column] = bad
        got = kernel(broken, 0, None)
        assert not got[4].isfinite().any()
        others = torch.arange(len(x)) != 4
        assert torch.equal(got[others], expected[others])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zero_and_tiny_rows(dtype: torch.dtype) -> None:
    x, w, b = tensors(63, 40)
    x[3], x[5], w[7] = 0, 1e-38, 0
    y = PackedLinear(w, b, dtype)(x, 0, None)
    assert torch.equal(y[3], b) and torch.allclose(y[5], b)
    assert torch.allclose(y[:, 7], b[7].expand(len(x)), atol=1e-6)


@pytest.mark.parametrize("inputs", [5, 32, 70])
def test_int4_keeps_values_that_are_on_its_grid(inputs: int) -> None:
    """As those of a Q4_1 file are: nothing changes when they are quantised again."""
    weight = torch.randn(9, inputs, generator=torch.Generator().manual_seed(2))
    weight[3] = 0.25  # a group of one value
    once = quantise_groups(weight)
    again = quantise_groups(once.dequantise())
    assert torch.equal(again.dequantise(), once.dequantise())
    assert once.shape == (9, inputs) == quantise(weight).shape
    spread = torch.stack([part.amax(1) - part.amin(1) for part in weight.split(GROUP, 1)], 1)
    error = (once.dequantise() - weight).abs()
    assert (error <= (spread / 15 * 0.51 + 2e-3).repeat_interleave(GROUP, 1)[:, :inputs]).all()
