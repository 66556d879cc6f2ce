"""Linear kernels against their definitions: values, bits that don't depend on company, sums that can't saturate."""

from __future__ import annotations

import itertools

import pytest
import torch

from random_models import with_threads
from trifolium.ops.linear import FloatLinear, Int8Linear
from trifolium.ops.linear.reference import int8_linear, linear, quantise_rows

TILE = 16
SHAPES = [(1, 1), (3, 5), (63, 40), (129, 97), (576, 192), (1001, 65), (1536, 33), (2048, 17), (2047, 16)]
"""(inputs, outputs)."""


def tensors(inputs: int, outputs: int, rows: int = 37) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(inputs)
    x, w = torch.randn(rows, inputs, generator=generator), torch.randn(outputs, inputs, generator=generator)
    return x * torch.rand(rows, 1, generator=generator).exp2() * 3, w * 0.1, torch.randn(outputs, generator=generator)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float_is_the_definition(shape: tuple[int, int], biased: bool) -> None:
    x, w, b = tensors(*shape)
    bias = b if biased else None
    kernel = FloatLinear(w, bias, torch.float32)
    for commit, tile in ((0, TILE), (16, TILE), (32, TILE), (20, TILE), (37, None), (37, TILE)):
        assert torch.allclose(kernel(x, commit, tile), linear(x, w, bias), rtol=1e-5, atol=2e-5)
    assert torch.equal(kernel(x[:16], 16, TILE), kernel(x, 16, TILE)[:16])


def test_bfloat16_is_near_the_definition() -> None:
    x, w, b = tensors(576, 192)
    kernel = FloatLinear(w, b, torch.bfloat16)
    assert not kernel.exact
    got = kernel(x, 16, None)
    assert got.dtype == torch.float32
    error = (got - linear(x, w, b)).norm() / linear(x, w, b).norm()
    assert 0 < error < 0.01
    assert kernel.nbytes * 2 == FloatLinear(w, b, torch.float32).nbytes


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_commit_rows_bits_do_not_depend_on_its_tile(shape: tuple[int, int], threads: int) -> None:
    """In any place of any tile, beside any rows."""
    x, w, b = tensors(*shape, rows=48)
    kernel = FloatLinear(w, b, torch.float32)

    def check() -> None:
        row = x[5:6]
        expected = kernel(torch.cat((row, torch.zeros(15, shape[0]))), 16, TILE)[0]
        for at in range(48):
            company = torch.cat((x[:at], row, x[at + 1 :]))
            assert torch.equal(kernel(company, 48, TILE)[at], expected)
            assert torch.equal(kernel(torch.cat((company, x[:7])), 48, TILE)[at], expected)

    with_threads(threads, check)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_int8_is_the_definition(shape: tuple[int, int], biased: bool) -> None:
    """Bit for bit: the same integers, in the same order of scaling."""
    x, w, b = tensors(*shape)
    bias = b if biased else None
    kernel = Int8Linear(w, bias)
    integers, scale = quantise_rows(w, 127)
    expected = int8_linear(x, integers, scale, kernel.limit, bias)
    assert torch.equal(kernel(x, 0, None), expected)
    error = (expected - linear(x, w, bias)).norm() / linear(x, w, bias).norm()
    assert error < 0.05
    assert kernel.nbytes == w.numel()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_int8_row_is_the_same_bits_in_any_call(shape: tuple[int, int], threads: int) -> None:
    x, w, b = tensors(*shape, rows=67)
    kernel = Int8Linear(w, b)

    def check() -> None:
        expected = torch.cat([kernel(row[None], 1, TILE) for row in x])
        for m in (1, 2, 7, 15, 16, 17, 33, 64, 67):
            assert torch.equal(kernel(x[:m], m, TILE), expected[:m])
        order = torch.randperm(67, generator=torch.Generator().manual_seed(1))
        assert torch.equal(kernel(x[order], 20, TILE), expected[order])

    with_threads(threads, check)


@pytest.mark.parametrize("inputs", [1, 2, 3, 31, 64, 255, 1024, 1025, 1999, 2048])
def test_int8_never_saturates(inputs: int) -> None:
    """Rows of only the largest integers, in every sign, against weights of only the largest: sums are exact.

    Pairs of neighbours are what an instruction that sums two products in 16 bits would clip.
    """
    patterns = [torch.tensor(p).repeat(inputs // 2 + 1)[:inputs] for p in itertools.product((1.0, -1.0), repeat=2)]
    patterns += [torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(inputs // 4 + 1)[:inputs]]
    rows = torch.stack(patterns)
    kernel = Int8Linear(rows, None)
    # Row and weight scales are 1 / limit and 1 / 127: what is left are integers over limit * 127.
    expected = int8_linear(rows, *quantise_rows(rows, 127), kernel.limit)
    got = kernel(rows, 0, None)
    assert torch.equal(got, expected)
    assert torch.allclose(got, (rows.double() @ rows.double().T).float(), rtol=1e-6, atol=1e-6)
    wide = kernel(rows.repeat(13, 1), 0, None)
    assert torch.equal(wide, expected.repeat(13, 1))


def test_int8_zero_rows_and_zero_weights() -> None:
    x, w, b = tensors(63, 40)
    x[3], w[7] = 0, 0
    y = Int8Linear(w, b)(x, 0, None)
    assert torch.equal(y[3], b)
    assert torch.equal(y[:, 7], b[7].expand(len(x)))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_spoils_itself_only(bad: float) -> None:
    """Its outputs are NaN, so that the fault shows, and every other row keeps its bits."""
    x, w, b = tensors(129, 97)
    kernel = Int8Linear(w, b)
    expected = kernel(x, 0, None)
    x[4, 17] = bad
    got = kernel(x, 0, None)
    assert got[4].isnan().all()
    others = torch.arange(len(x)) != 4
    assert torch.equal(got[others], expected[others])
