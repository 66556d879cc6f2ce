"""The preview mixer three times: reference, batched form, and loops over plain numbers written for this test."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from trifolium.errors import UsageError
from trifolium.ops.preview import PreviewParams, initial_preview, preview, reference
from trifolium.ops.preview.reference import Variant

G, H, D, E, W = 2, 6, 5, 3, 4
C = 2 * G * D + H * E


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def params(seed: int = 10) -> PreviewParams:
    scale, bias, c = (random(H, seed=seed + i) for i in range(3))
    return PreviewParams(random(C, W, seed=seed + 3), random(C, W - 1, seed=seed + 4), scale * 2, bias, c, G, D)


def by_hand(u: Tensor, state: Tensor, ring: Tensor, p: PreviewParams) -> list[list[list[float]]]:
    """Steps 1 to 6 of the design, on lists of floats."""
    rows, before = u.tolist(), ring.tolist()
    m, taps, right = len(rows), p.left_CK.tolist(), p.right.tolist()
    local = []
    for t in range(m):
        features = []
        for channel in range(C):
            x = sum(taps[channel][j] * (before + rows)[t + j][channel] for j in range(W))
            x += sum(right[channel][d - 1] * rows[t + d][channel] for d in range(1, W) if t + d < m)
            features.append(x / (1 + math.exp(-x)))
        local.append(features)

    def unit(x: list[float]) -> list[float]:
        length = math.sqrt(sum(v * v for v in x) + 1e-6)
        return [v / length for v in x]

    out = []
    for i in range(m):
        heads = []
        for h in range(H):
            g = h // (H // G)
            q = unit(local[i][g * D : (g + 1) * D])
            logits = [float(p.history_bias_H[h]) + float(p.history_c_H[h]) * math.log(m)]
            for j in range(m):
                k = unit(local[j][G * D + g * D : G * D + (g + 1) * D])
                logits.append(float(p.logit_scale_H[h]) * sum(a * b for a, b in zip(q, k, strict=True)))
            weights = [math.exp(x) for x in logits]
            y = []
            for e in range(E):
                read = sum(float(state[h, d, e]) * q[d] for d in range(D)) / math.sqrt(D)
                value = weights[0] * read
                value += sum(weights[1 + j] * local[j][2 * G * D + h * E + e] for j in range(m))
                y.append(value / sum(weights))
            heads.append(y)
        out.append(heads)
    return out


@pytest.mark.parametrize("m", [1, 2, 7])
def test_three_ways_agree(m: int) -> None:
    u, state, ring, p = random(m, C), random(H, D, E, seed=1), random(W - 1, C, seed=2), params()
    expected = torch.tensor(by_hand(u, state, ring, p), dtype=torch.float64)
    assert torch.allclose(reference.preview(u, state, ring, p), expected)
    assert torch.allclose(preview(u, state, ring, p), expected)


def test_batched_is_each_block_alone() -> None:
    u, state, ring = random(2, 3, 4, C), random(2, 3, H, D, E, seed=1), random(2, 3, W - 1, C, seed=2)
    got = preview(u, state, ring, params())
    for i in range(2):
        for j in range(3):
            assert torch.allclose(got[i, j], reference.preview(u[i, j], state[i, j], ring[i, j], params()))


def test_gradients() -> None:
    p = params()
    args = [t.requires_grad_() for t in (random(2, 3, C), random(2, H, D, E), random(2, W - 1, C), *p[:5])]

    def run(u: Tensor, state: Tensor, ring: Tensor, *weights: Tensor) -> Tensor:
        return preview(u, state, ring, PreviewParams(*weights, G, D))

    assert torch.autograd.gradcheck(run, args)


def test_without_history_the_state_is_not_read() -> None:
    u, ring = random(4, C), random(W - 1, C)
    p = params()._replace(history_bias_H=torch.full((H,), -1e4, dtype=torch.float64))
    a, b = (preview(u, random(H, D, E, seed=s), ring, p) for s in (1, 2))
    assert torch.equal(a, b)


@pytest.mark.parametrize("m", [1, 4, 32])
def test_a_fresh_mixer_gives_the_history_its_mass_in_any_block(m: int) -> None:
    """With values of zero, outputs are the readout times the history's share."""
    fresh = {name: t.double() for name, t in initial_preview(H, C, W, 0.95).items()}
    left = random(C, W) * 0.1
    left[2 * G * D :] = 0
    p = PreviewParams(left, fresh["right"], fresh["logit_scale"] * 0, fresh["history_bias"], fresh["history_c"], G, D)
    u, state, ring = random(m, C), random(H, D, E, seed=1), random(W - 1, C)
    only = p._replace(history_bias_H=torch.full((H,), 1e4, dtype=torch.float64))
    assert torch.allclose(preview(u, state, ring, p), 0.95 * preview(u, state, ring, only))


def test_variants_of_the_reference() -> None:
    u, state, ring, p = random(3, C), random(H, D, E, seed=1), random(W - 1, C, seed=2), params()
    g, beta = -random(3, H, seed=3).abs(), random(3, H, seed=4).sigmoid()
    plain = reference.preview(u, state, ring, p)
    base = reference.preview(u, state, ring, p, variant=Variant(log_base=4.0))
    moved = p._replace(history_bias_H=p.history_bias_H - p.history_c_H * math.log(4.0))
    assert torch.allclose(base, reference.preview(u, state, ring, moved))
    scaled = reference.preview(u, state, ring, p, variant=Variant(scaled_q=True))
    assert torch.allclose(
        scaled, reference.preview(u, state, ring, p._replace(logit_scale_H=p.logit_scale_H * D**-0.5))
    )
    ones = reference.preview(u, state, ring, p, variant=Variant(values="beta_v"), beta_mH=torch.ones_like(beta))
    assert torch.allclose(ones, plain)
    zeros = reference.preview(u, state, ring, p, variant=Variant(decayed_readout=True), g_mH=torch.zeros_like(g))
    assert torch.allclose(zeros, plain)
    for variant in (Variant(values="beta_v"), Variant(decayed_readout=True)):
        changed = reference.preview(u, state, ring, p, variant=variant, g_mH=g, beta_mH=beta)
        assert not torch.allclose(changed, plain)
        with pytest.raises(UsageError, match="needs"):
            reference.preview(u, state, ring, p, variant=variant)
