"""The delta rule in chunks and by rows against its loop; partial apply, bit for bit; parity with transformers."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trifolium.errors import UsageError
from trifolium.ops import native
from trifolium.ops.delta_rule import advance, apply, chunked, state_at
from trifolium.ops.delta_rule.reference import recurrent

B, T, H, D, E = 2, 23, 3, 6, 5


def inputs(length: int = T, *, decay: float = 1.0, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """q, k, v, g, beta, state."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    q, k = (torch.nn.functional.normalize(random(B, length, H, D), dim=-1) for _ in range(2))
    v, g, beta = random(B, length, H, E), -decay * random(B, length, H).abs(), random(B, length, H).sigmoid()
    return [q, k, v, g, beta, random(B, H, D, E)]


@pytest.mark.parametrize("decay", [0.0, 0.1, 3.0, 60.0])
@pytest.mark.parametrize("length", [1, 4, 7, 8, T])
def test_chunked_is_the_recurrence(length: int, decay: float) -> None:
    args = inputs(length, decay=decay)
    out, state = recurrent(*args)
    for chunk in (1, 4, 8, 64):
        got = chunked(*args, chunk=chunk)
        assert torch.allclose(got.out, out)
        assert torch.allclose(got.state, state)
    zero = chunked(*args[:5])
    assert torch.allclose(zero.out, recurrent(*args[:5], torch.zeros_like(args[5]))[0])


def test_no_positions_change_nothing() -> None:
    args = inputs(0)
    assert torch.equal(chunked(*args).state, args[5])


@pytest.mark.parametrize("chunk", [4, 5, 64])
def test_state_at_any_position(chunk: int) -> None:
    args = inputs()
    trace = chunked(*args, chunk=chunk).trace
    positions = torch.tensor([[-1, 0, 3, 4, T - 1], [7, 7, 22, 11, -1]])
    got = state_at(trace, positions)
    for b in range(B):
        for i, p in enumerate(positions[b].tolist()):
            _, state = recurrent(*(t[b : b + 1, : p + 1] for t in args[:5]), args[5][b : b + 1])
            assert torch.allclose(got[b, i], state[0])
    for bad in (-2, T):
        with pytest.raises(UsageError, match="positions -1"):
            state_at(trace, torch.full((B, 1), bad))


@pytest.mark.parametrize("decay", [0.5, 60.0])
def test_gradients(decay: float) -> None:
    args = [t.requires_grad_() for t in inputs(7, decay=decay)]
    positions = torch.tensor([[-1, 2, 6], [4, 5, 0]])

    def run(*args: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        result = chunked(*args, chunk=4)
        return result.out, result.state, state_at(result.trace, positions)

    def loop(*args: Tensor) -> tuple[Tensor, Tensor]:
        return recurrent(*args)

    assert torch.autograd.gradcheck(run, args)
    ours = torch.autograd.grad(sum(t.square().sum() for t in run(*args)[:2]), args)
    theirs = torch.autograd.grad(sum(t.square().sum() for t in loop(*args)), args)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b)


@pytest.fixture(params=["native", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(native, "supports", lambda tensor: False)
    elif native.native().library is None:
        pytest.skip(f"no native kernels: {native.native().why}")


def rows(length: int, seed: int = 0) -> list[Tensor]:
    """q, k, v, decay, beta of one request, and its state."""
    q, k, v, g, beta, state = (t[0].contiguous() for t in inputs(length, dtype=torch.float32, seed=seed))
    return [q, k, v, g.exp(), beta, state]


@pytest.mark.usefixtures("kernels")
def test_advance_is_the_recurrence() -> None:
    q, k, v, decay, beta, state = rows(9)
    before = state.clone()
    done = advance(q, k, v, decay, beta, state, keep=(0, 5))
    out, last = recurrent(*(t[None] for t in (q, k, v, decay.log(), beta, state)))
    assert torch.allclose(done.out, out[0], atol=1e-5)
    assert torch.allclose(done.last, last[0], atol=1e-5)
    assert torch.equal(state, before)
    for row, kept in done.kept.items():
        part = advance(*(t[: row + 1] for t in (q, k, v, decay, beta)), state)
        assert torch.equal(kept, part.last)
        assert torch.equal(done.out[: row + 1], part.out)
    with pytest.raises(UsageError, match=r"rows 0 \.\. 8"):
        advance(q, k, v, decay, beta, state, keep=(9,))


@pytest.mark.usefixtures("kernels")
@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_accepting_any_path_of_a_tree_is_having_committed_it_alone(data: st.DataObject) -> None:
    """Rows of a tree, each advanced after its own ancestors: applying a path's updates gives that path's state."""
    q, k, v, decay, beta, state = rows(8, seed=data.draw(st.integers(0, 99)))
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(8)]
    states, updates = {-1: state}, []
    for i, parent in enumerate(parents):
        one = advance(q[i : i + 1], k[i : i + 1], v[i : i + 1], decay[i : i + 1], beta[i : i + 1], states[parent])
        states[i] = one.last
        updates.append(one.updates)
    path = [data.draw(st.integers(0, 7))]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    alone = advance(q[path], k[path], v[path], decay[path], beta[path], state)
    assert torch.equal(apply(state, decay, k, torch.cat(updates), path), alone.last)
    assert torch.equal(states[path[-1]], alone.last)
    assert torch.equal(apply(state, decay, k, torch.cat(updates), []), state)


@pytest.mark.parametrize("name", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"])
def test_parity_with_transformers(name: str) -> None:
    from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe

    theirs: Any = inspect.unwrap(getattr(modeling_qwen3_5_moe, name))
    q, k, v, g, beta, state = inputs(70, dtype=torch.float32)
    expected, last = theirs(
        query=q, key=k, value=v, g=g, beta=beta, initial_state=state, output_final_state=True,
        use_qk_l2norm_in_kernel=False,
    )  # fmt: skip
    got = chunked(q, k, v, g, beta, state)
    assert torch.allclose(got.out, expected, rtol=1e-4, atol=1e-5)
    assert torch.allclose(got.state, last, rtol=1e-4, atol=1e-5)
