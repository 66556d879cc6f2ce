"""Routing, coresets, and grouped experts against plain loops; a commit row's bits don't depend on its company."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from random_models import with_threads, without_kernels
from trifolium.ops import native
from trifolium.ops.experts import (
    FloatExperts,
    Int8Experts,
    NativeExperts,
    Routing,
    coresets,
    experts_kernel,
    experts_train,
    reference,
    route,
)
from trifolium.ops.formats import INT4

needs_kernels = pytest.mark.skipif(not native.available(), reason=f"no kernels: {native.native().why}")

N, D, E, K, F = 37, 24, 7, 3, 10


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights() -> tuple[Tensor, Tensor]:
    return random(E, 2 * F, D, seed=1) * D**-0.5, random(E, D, F, seed=2) * F**-0.5


def routing(n: int = N, seed: int = 3) -> Routing:
    return route(random(n, E, seed=seed) * 2, K, True)


def test_route_by_hand() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, -1.0], [5.0, 0.0, 0.0, 0.0]])
    p = logits.softmax(-1)
    plain = route(logits, 2, False)
    assert plain.experts.tolist() == [[1, 2], [0, 1]]  # equals: the lowest index first
    assert torch.equal(plain.weights, torch.stack((p[0, 1:3], p[1, :2])))
    scaled = route(logits, 2, True)
    assert torch.allclose(scaled.weights.sum(-1), torch.ones(2))
    allowed = torch.tensor([[True, False, True, True]] * 2)
    inside = route(logits, 2, False, allowed)
    assert inside.experts.tolist() == [[2, 0], [0, 2]]
    assert torch.allclose(inside.weights[0], p[0, [2, 0]] / p[0, [2, 0]].sum())


def test_coresets_by_hand() -> None:
    p = torch.tensor([[0.5, 0.1, 0.1, 0.3], [0.7, 0.1, 0.1, 0.1]])  # mean .6 .1 .1 .2
    for top_p, least, wanted in [
        (0.5, 1, {0}),
        (0.5, 2, {0, 3}),
        (0.7, 1, {0, 3}),
        (0.85, 1, {0, 1, 3}),
        (1.0, 1, {0, 1, 2, 3}),
    ]:
        found = coresets(p, top_p, least)
        assert set(found.nonzero()[:, 0].tolist()) == wanted, (top_p, least)
    both = coresets(torch.stack((p, p.flip(-1))), 0.7, 1)
    assert torch.equal(both[1], both[0].flip(-1))


def test_whole_coreset_is_plain_routing() -> None:
    logits = random(N, E)
    allowed = coresets(logits.softmax(-1), 1.0, K).expand(N, E)
    for a, b in zip(route(logits, K, True), route(logits, K, True, allowed), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("commit", [0, 5, N])
def test_kernels_agree_with_the_reference(commit: int) -> None:
    gate_up, down = weights()
    x, chosen = random(N, D), routing()
    expected = reference.experts(x, chosen, gate_up, down)
    kernel = FloatExperts(gate_up, down, torch.float32)
    for exact in (True, False):
        assert torch.allclose(kernel(x, chosen, commit, exact), expected, rtol=1e-4, atol=1e-5)
    assert torch.allclose(experts_train(x, chosen, gate_up, down), expected, rtol=1e-4, atol=1e-5)
    quantised = Int8Experts(gate_up, down)(x, chosen, commit, True)
    assert (quantised - expected).norm() < 0.05 * expected.norm()
    half = FloatExperts(gate_up, down, torch.bfloat16)(x, chosen, commit, True)
    assert (half - expected).norm() < 0.02 * expected.norm()


@needs_kernels
@pytest.mark.parametrize(
    ("dtype", "error"), [(torch.float32, 1e-6), (torch.bfloat16, 0.02), (torch.int8, 0.02), (INT4, 0.15)], ids=str
)
def test_native_experts_agree_with_the_reference(dtype: torch.dtype, error: float) -> None:
    gate_up, down = weights()
    x, chosen = random(N, D), routing()
    expected = reference.experts(x, chosen, gate_up, down)
    kernel = experts_kernel(gate_up, down, dtype)
    assert isinstance(kernel, NativeExperts) and kernel.exact and kernel.nbytes > 0
    got = kernel(x, chosen, 3, True)
    assert (got - expected).norm() < error * expected.norm()
    one, three = (with_threads(threads, lambda: kernel(x, chosen, N, True)) for threads in (1, 3))
    assert torch.equal(one, got) and torch.equal(three, got)


def test_without_kernels_int4_keeps_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    gate_up, down = weights()
    x, chosen = random(N, D), routing()
    native_int4 = experts_kernel(gate_up, down, INT4)(x, chosen, N, True)
    without_kernels(monkeypatch)
    plain = experts_kernel(gate_up, down, INT4)
    assert isinstance(plain, FloatExperts) and isinstance(experts_kernel(gate_up, down, torch.int8), Int8Experts)
    assert (plain(x, chosen, N, True) - native_int4).norm() < 0.02 * native_int4.norm()


def test_gradients() -> None:
    gate_up, down = (w.double().requires_grad_() for w in weights())
    x = random(9, D).double().requires_grad_()
    logits = random(9, E, seed=3).double().requires_grad_()
    order = logits.detach().topk(K).indices

    def run(x: Tensor, logits: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        return experts_train(x, Routing(order, logits.softmax(-1).gather(-1, order)), gate_up, down)

    assert torch.autograd.gradcheck(run, (x, logits, gate_up, down))


@pytest.mark.parametrize(
    "make",
    [
        lambda g, d: FloatExperts(g, d, torch.float32),
        Int8Experts,
        *(
            pytest.param(lambda g, d, dtype=dtype: NativeExperts(g, d, dtype), marks=needs_kernels)
            for dtype in (torch.float32, torch.bfloat16, torch.int8, INT4)
        ),
    ],
    ids=["float32", "int8", "native-float32", "native-bfloat16", "native-int8", "native-int4"],
)
def test_company_changes_no_bit(make) -> None:
    kernel = make(*weights())
    x, chosen = random(N, D), routing()
    alone = torch.cat(
        [kernel(x[i : i + 1], Routing(chosen.experts[i : i + 1], chosen.weights[i : i + 1]), 1, True) for i in range(N)]
    )
    for commit in (1, 5, 16, 17, N):
        assert torch.equal(kernel(x, chosen, commit, True)[:commit], alone[:commit])
    order = torch.randperm(N, generator=torch.Generator().manual_seed(5))
    mixed = kernel(x[order], Routing(chosen.experts[order], chosen.weights[order]), N, True)
    assert torch.equal(mixed, alone[order])


def test_parity_with_transformers() -> None:
    from transformers import Qwen3_5MoeTextConfig
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeTopKRouter

    config = Qwen3_5MoeTextConfig(hidden_size=D, num_experts=E, num_experts_per_tok=K)
    router = Qwen3_5MoeTopKRouter(config)
    torch.nn.init.normal_(router.weight, std=0.5)
    x = random(N, D)
    with torch.no_grad():
        _, theirs, indices = router(x)
        ours = route(x @ router.weight.T, K, True)
    assert torch.equal(ours.experts, indices)
    assert torch.allclose(ours.weights, theirs, atol=1e-6)
