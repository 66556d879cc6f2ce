"""Convolutions over sequences, blocks and rows against their loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from random_models import with_threads
from trifolium.ops import conv
from trifolium.ops.conv import reference

B, T, C, K = 2, 9, 7, 4


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("length", [1, 2, T])
def test_sequences(length: int) -> None:
    u, weight, ring, right = random(B, length, C), random(C, K, seed=1), random(B, K - 1, C, seed=2), random(C, K - 1)
    causal = torch.stack([reference.causal(u[b], weight, ring[b]) for b in range(B)])
    both = torch.stack([reference.two_sided(u[b], ring[b], weight, right) for b in range(B)])
    assert torch.allclose(conv.causal(u, weight, ring), causal)
    assert torch.allclose(conv.two_sided(u, ring, weight, right), both)
    assert torch.allclose(conv.two_sided(u, ring, weight, torch.zeros_like(right)), causal)
    padded = F.silu(F.conv1d(F.pad(u.mT, (K - 1, 0)), weight[:, None], groups=C)).mT
    assert torch.allclose(conv.causal(u, weight), padded)
    nested = conv.two_sided(u[:, None], ring[:, None], weight, right)
    assert torch.equal(nested[:, 0], conv.two_sided(u, ring, weight, right))


def test_gradients() -> None:
    args = [t.requires_grad_() for t in (random(B, 5, C), random(B, K - 1, C), random(C, K), random(C, K - 1))]
    assert torch.autograd.gradcheck(conv.two_sided, args)
    assert torch.autograd.gradcheck(lambda u, ring, weight: conv.causal(u, weight, ring), args[:3])


def test_rows_of_a_tree() -> None:
    """Every row is the last one of its own path's sequence; its bits don't depend on the others."""
    u, weight, ring = (random(*s, dtype=torch.float32) for s in ((6, 33), (33, K), (K - 1, 33)))
    paths = [(0,), (0, 1), (0, 1, 2), (0, 3), (0, 3, 4), (5,)]
    index = conv.path_index(paths, K)
    got = conv.rows(u, weight, ring, index)
    for threads in (1, 3):
        for row, path in enumerate(paths):
            expected = reference.causal(u[list(path)].double(), weight.double(), ring.double())[-1]
            assert torch.allclose(got[row].double(), expected, atol=1e-6)
            alone = conv.path_index([tuple(range(len(path)))] * 1, K)
            one = with_threads(threads, lambda p=path, a=alone: conv.rows(u[list(p)], weight, ring, a))
            assert torch.equal(one[0], got[row])
            after = conv.ring_after(u, ring, path)
            assert torch.equal(after, torch.cat((ring, u[list(path)]))[-(K - 1) :])
    assert torch.equal(conv.ring_after(u, ring, ()), ring)
