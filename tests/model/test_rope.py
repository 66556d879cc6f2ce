"""Rotary positions: a position's row is the same whatever was asked before it, and rotation is one of pairs."""

from __future__ import annotations

import math

import pytest
import torch

from random_models import with_threads
from trifolium.config import RopeConfig
from trifolium.model.rope import Rope, inverse_frequencies, rotate

SCALINGS = [
    RopeConfig(theta=500.0),
    RopeConfig(kind="dynamic", factor=2.0, original_max_positions=64),
    RopeConfig(kind="yarn", factor=4.0, original_max_positions=1024),
    RopeConfig(kind="llama3", factor=8.0, original_max_positions=512),
]
LIMITS = (1, 1023, 1024, 1025, 3000, 5000)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rope", SCALINGS, ids=lambda r: r.kind)
def test_rows_do_not_depend_on_the_calls_before(rope: RopeConfig, threads: int) -> None:
    """A table made for any limit, or grown through any others, holds the same bits."""

    def check() -> None:
        positions = torch.arange(5000)
        expected = Rope(rope, 22, 5000)(positions, 5000)
        growing, shrinking = Rope(rope, 22, 5000), Rope(rope, 22, 5000)
        for limit in LIMITS:
            for table, end in ((Rope(rope, 22, 5000), limit), (growing, limit), (shrinking, 5001 - limit)):
                got = table(positions[:end], end)
                assert all(torch.equal(a, b[:end]) for a, b in zip(got, expected, strict=True))

    with_threads(threads, check)
    alone = Rope(rope, 22, 5000)(torch.arange(5000), 5000)
    other = with_threads(threads, lambda: Rope(rope, 22, 5000)(torch.arange(5000), 5000))
    assert all(torch.equal(a, b) for a, b in zip(alone, other, strict=True))


def test_cosines_and_sines_of_positions_in_any_order() -> None:
    """Each is the float32 angle's, to the last bit or two, and the shape is that of the positions."""
    rope = Rope(RopeConfig(), 16, 4096)
    positions = torch.tensor([[4000, 0, 17], [17, 2047, 2048]])
    cos, sin = rope(positions, 4001)
    assert cos.shape == sin.shape == (2, 3, 8)
    for row, position in zip(cos.flatten(0, 1), positions.flatten(), strict=True):
        angles = [float(torch.tensor(float(position)) * f) for f in rope.inverse]
        assert torch.allclose(row, torch.tensor([math.cos(a) for a in angles]), rtol=0, atol=2e-7)
    assert torch.equal(cos[0, 2], cos[1, 0])
    assert torch.equal(sin[0, 1], torch.zeros(8))


def test_scores_depend_on_distance_alone() -> None:
    """<rotate(q, i), rotate(k, j)> is a function of i - j, and rotation keeps lengths."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 3, 12, generator=generator)
    rope = Rope(RopeConfig(theta=100.0), 12, 512)

    def score(i: int, j: int) -> torch.Tensor:
        a, b = (rotate(x, *rope(torch.tensor([p]), 512)) for x, p in ((q, i), (k, j)))
        return (a * b).sum(-1)

    assert torch.allclose(score(9, 4), score(105, 100), atol=1e-4)
    assert not torch.allclose(score(9, 4), score(9, 5), atol=1e-2)
    assert torch.allclose(rotate(q, *rope(torch.tensor([77]), 512)).norm(dim=-1), q.norm(dim=-1))


def test_partial_rotation_leaves_the_rest() -> None:
    rope = Rope(RopeConfig(rotary_dim=4), 10, 64)
    x = torch.randn(5, 2, 10)
    y = rotate(x, *rope(torch.arange(5) + 1, 64))
    assert torch.equal(y[..., 4:], x[..., 4:])
    assert not torch.isclose(y[..., :4], x[..., :4]).all(-1).any()


def test_yarn_with_mscales_of_equal_size_leaves_attention_as_it_is() -> None:
    yarn = RopeConfig(kind="yarn", factor=4.0, original_max_positions=64, mscale=0.7, mscale_all_dim=0.7)
    assert inverse_frequencies(yarn, 16, 256)[1] == 1.0
    plain = yarn.model_copy(update={"mscale": None})
    assert inverse_frequencies(plain, 16, 256)[1] == pytest.approx(0.1 * math.log(4.0) + 1.0)
