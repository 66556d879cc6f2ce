"""The adapter's parts: the chain, input embeddings, low-rank deltas, and its way to disk and back."""

from __future__ import annotations

import pytest
import torch

from random_models import random_adapter, tiny_config
from trifolium.model import MASK
from trifolium.model.linear import LowRank

CONFIG = tiny_config()
D = CONFIG.hidden_size


def vectors(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, D, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
def test_the_chains_forward_is_its_steps(batch: tuple[int, ...]) -> None:
    chain = random_adapter(CONFIG).chain
    assert chain is not None
    hidden, previous, context = vectors(*batch, 5), vectors(*batch, 5, seed=1), vectors(*batch, seed=2)
    got = chain(hidden, previous, context)
    carry = torch.zeros(*batch, D)
    for j in range(5):
        carry = chain.step(hidden[..., j, :], previous[..., j, :], context, carry)
        assert torch.allclose(got[..., j, :], hidden[..., j, :] + carry, rtol=1e-5, atol=1e-6)


def test_the_chain_by_its_formula() -> None:
    """s_j = W_down swiglu(W_up [rms(h_j); rms(e_j); rms(c); s_{j-1}]), in float64."""
    chain = random_adapter(CONFIG).chain
    assert chain is not None
    hidden, previous, context = vectors(4), vectors(4, seed=1), vectors(seed=2)
    up, down = chain.up.double(), chain.down.double()

    def rms(x: torch.Tensor) -> torch.Tensor:
        return x / (x.square().mean() + CONFIG.rms_norm_eps).sqrt()

    s = torch.zeros(D, dtype=torch.float64)
    expected = []
    for h, e in zip(hidden.double(), previous.double(), strict=True):
        gate, value = (up @ torch.cat((rms(h), rms(e), rms(context.double()), s))).chunk(2)
        s = down @ (gate * gate.sigmoid() * value)
        expected.append(h + s)
    assert torch.allclose(chain(hidden, previous, context), torch.stack(expected).float(), rtol=1e-4, atol=1e-5)


def test_the_chain_looks_back_and_never_ahead() -> None:
    chain = random_adapter(CONFIG).chain
    assert chain is not None
    hidden, previous, context = vectors(6), vectors(6, seed=1), vectors(seed=2)
    before = chain(hidden, previous, context)
    for j in range(6):
        for which in (0, 1):
            inputs = [hidden.clone(), previous.clone()]
            inputs[which][j] += 1
            changed = (chain(*inputs, context) - before).abs().amax(-1) > 1e-5
            assert changed.tolist() == [i >= j for i in range(6)]
    assert ((chain(hidden, previous, context + vectors(seed=3)) - before).abs().amax(-1) > 1e-5).all()


def test_state_dict_round_trip() -> None:
    """Every parameter is in it, by a name of its own, and a second adapter that loads it is the first one."""
    first, second = random_adapter(CONFIG), random_adapter(CONFIG, seed=99)
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    assert set(state) == {name for name, _ in first.named_parameters()}
    assert not any(torch.equal(tensor, second.state_dict()[name]) for name, tensor in state.items())
    second.load_state_dict(state)
    hidden, previous = vectors(5), vectors(5, seed=1)
    assert first.chain is not None
    assert second.chain is not None
    assert torch.equal(first.chain(hidden, previous, hidden[0]), second.chain(hidden, previous, hidden[0]))
    for name, tensor in second.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_without_a_chain() -> None:
    adapter = random_adapter(CONFIG, chain_size=0)
    assert adapter.chain is None
    assert not any("chain" in name for name in adapter.state_dict())


def test_reset_is_set_by_its_seed() -> None:
    embedding = vectors(CONFIG.vocab_size)
    states = []
    for seed in (0, 0, 1):
        adapter = random_adapter(CONFIG, seed=5)
        adapter.reset(embedding, seed)
        states.append({name: tensor.clone() for name, tensor in adapter.state_dict().items()})
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    differing = {name for name in states[0] if not torch.equal(states[0][name], states[2][name])}
    zero = {name for name, tensor in states[0].items() if not tensor.any()}
    assert differing | zero | {"mask_embedding"} == set(states[0])
    assert not differing & zero


def test_inputs_of_preview_rows() -> None:
    adapter = random_adapter(CONFIG)
    last = adapter.config.max_block - 1
    tokens = torch.tensor([4, MASK, 0, MASK, MASK])
    index = torch.tensor([0, 1, last, last + 1, 1000])
    embedding = torch.nn.Embedding(9, D)
    embedded = embedding.weight[tokens]
    x = adapter.embed(tokens, index, embedding)
    places = adapter.block_position
    assert places is not None
    assert torch.equal(x[0], embedded[0] + places[0])
    assert torch.equal(x[1], adapter.mask_embedding + places[1])
    assert torch.equal(x[2], embedded[2] + places[last])
    assert torch.equal(x[3], adapter.mask_embedding + places[last])
    assert torch.equal(x[4], x[3])


def test_low_rank_scale_and_start() -> None:
    delta = LowRank(6, 9, 2, scale=0.5)
    delta.reset(torch.Generator().manual_seed(0))
    x = torch.randn(4, 6)
    assert not delta(x).any()
    with torch.no_grad():
        delta.up.normal_()
        expected = 0.5 * x @ delta.down.T @ delta.up.T
        assert torch.allclose(delta(x), expected, atol=1e-6)
