"""The native pass of a dense model against the same layers composed of torch operations."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from random_models import random_adapter, random_model, tiny_config, with_threads
from trifolium.model import MASK, RequestRows, Rows, Transformer
from trifolium.ops import native

pytestmark = pytest.mark.skipif(not native.available(), reason=f"no kernels: {native.native().why}")

FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass
class Run:
    """Hidden vectors of a prompt's chunk, of a pass with trees and previews, and of one after a path was accepted."""

    hidden: list[Tensor]
    cells: Tensor


def run(model: Transformer, program: bool) -> Run:
    if not program:
        model._program, model._programmed = None, model.adapter
    first, second = model.new_state(), model.new_state()
    hidden = []
    with torch.inference_mode():
        for state, length in ((first, 70), (second, 3)):
            rows = Rows.build([RequestRows(state, [(7 * i) % 90 for i in range(length)])], prefill=True)
            hidden.append(model.rows(rows))
            state.accept(length)
        tree = RequestRows(first, [5, 6, 7, 8, 9], [(2, [MASK, 11, MASK]), (5, [MASK, MASK])], parents=[-1, 0, 1, 0, 3])
        plain = RequestRows(second, [4, 3], [(0, [MASK]), (2, [1, MASK])])
        rows = Rows.build([tree, plain], tile=False)
        hidden.append(model.rows(rows))
        first.accept_path([0, 3, 4])
        second.accept_path([0])
        rows = Rows.build([RequestRows(first, [1]), RequestRows(second, [2, 3])], tile=False)
        hidden.append(model.rows(rows))
    return Run(hidden, first.attention.data[:, :, :, : first.length])


@pytest.mark.parametrize("rotary", [None, 6])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_native_pass_is_what_the_layers_compute(family: str, rotary: int | None) -> None:
    config = tiny_config(family)
    if rotary is not None:
        config = config.model_copy(update={"rope": config.rope.model_copy(update={"rotary_dim": rotary})})
    model = random_model(config)
    got = run(model, program=True)
    assert model._program is not None
    expected = run(model, program=False)
    for a, b in zip(got.hidden, expected.hidden, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)
    assert torch.allclose(got.cells, expected.cells, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.int4], ids=str)
def test_threads_change_no_bit(dtype: torch.dtype) -> None:
    model = random_model(tiny_config("qwen3"), dtype)
    one, three = (with_threads(threads, lambda: run(model, program=True)) for threads in (1, 3))
    assert model._program is not None
    for a, b in zip(one.hidden, three.hidden, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(one.cells, three.cells)


def test_another_adapter_makes_another_program() -> None:
    model = random_model(tiny_config("llama"))
    before = run(model, program=True).hidden[2]
    model.adapter = random_adapter(model.config, seed=9)
    after = run(model, program=True).hidden[2]
    assert torch.equal(before[:7], after[:7])  # commit rows
    assert not torch.allclose(before[7:], after[7:])
