"""States: their size is known beforehand, and what is taken from one makes another with the same bits."""

from __future__ import annotations

import pytest
import torch

from tiny_engine import engine_config, hybrid_config
from trifolium.model import RequestState
from trifolium.model.state import StateSize, cut_cells, parts_nbytes


def held(state: RequestState) -> int:
    return sum(layer.nbytes for layer in state.layers)


@pytest.mark.parametrize("config", [engine_config(), hybrid_config()], ids=["dense", "hybrid"])
def test_sizes_are_known_beforehand(config):
    size = StateSize.of(config)
    state = RequestState(config)
    assert state.nbytes == 0
    for capacity in (1, 64, 65, 130, 131, 400):
        before, growth = state.nbytes, state.growth(capacity)
        state.reserve(capacity)
        assert state.capacity >= capacity
        assert state.nbytes == held(state) == before + growth == size.at(state.capacity)
    state.free()
    assert (state.nbytes, state.length, state.capacity) == (0, 0, 0)


def test_room_never_grows_past_what_is_needed():
    state = RequestState(engine_config())
    state.most = 200
    state.reserve(150)
    state.reserve(193)
    assert state.capacity == 256  # whole cells of the grid
    roomy = RequestState(engine_config())
    roomy.reserve(192)
    roomy.reserve(193)
    assert roomy.capacity == 320


@pytest.mark.parametrize("config", [engine_config(), hybrid_config()], ids=["dense", "hybrid"])
def test_what_is_taken_from_a_state_makes_another_one(config):
    generator = torch.Generator().manual_seed(3)
    state = RequestState(config)
    state.reserve(70)
    for layer in state.layers:
        for name, tensor in vars(layer).items():
            if isinstance(tensor, torch.Tensor):
                setattr(layer, name, torch.randn(tensor.shape, generator=generator))
    state.length = 67
    cells, snapshot = state.cells(0, 67), state.snapshot()
    assert parts_nbytes(cells) == StateSize.of(config).cell * 67
    assert parts_nbytes(snapshot) == StateSize.of(config).fixed
    other = RequestState(config)
    other.load(67, [(0, cut_cells(cells, 0, 23)), (23, cut_cells(cells, 23, 67))], snapshot)
    for layer, twin in zip(state.layers, other.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(layer.cells(0, 67), twin.cells(0, 67), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(layer.snapshot(), twin.snapshot(), strict=True))
        for tensor in (*layer.cells(0, 1), *layer.snapshot()):
            tensor.fill_(7.0)  # copies: neither state sees it
        assert not any(bool((t == 7.0).any()) for t in (*layer.cells(0, 67), *layer.snapshot()))
