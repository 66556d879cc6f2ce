"""Which implementation is chosen, and what is said about it."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

from trifolium.errors import NotFoundError
from trifolium.ops.delta_rule import chunked
from trifolium.ops.registry import choose, chosen

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_torch_on_a_cpu_and_where_fla_is_missing() -> None:
    assert choose("delta_rule.chunked", CPU).name == "torch"
    assert choose("delta_rule.chunked", CUDA).name == "torch"  # not installed here
    assert choose("delta_rule.traced", CUDA).function is chunked
    assert set(chosen(CPU)) == {"delta_rule.chunked", "delta_rule.traced"}
    assert "need a GPU" in chosen(CPU)["delta_rule.chunked"]
    with pytest.raises(NotFoundError, match=r"delta_rule\.chunked, delta_rule\.traced"):
        choose("delta_rule", CPU)


def test_both_torch_forms_agree() -> None:
    q, k, v = torch.randn(1, 5, 2, 3), torch.randn(1, 5, 2, 3), torch.randn(1, 5, 2, 4)
    g, beta = -torch.rand(1, 5, 2), torch.rand(1, 5, 2)
    out, state = choose("delta_rule.chunked", CPU).function(q, k, v, g, beta)
    traced = choose("delta_rule.traced", CPU).function(q, k, v, g, beta)
    assert torch.equal(out, traced.out)
    assert torch.equal(state, traced.state)


def test_fla_gets_our_arguments_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the call can be checked without a GPU: the names and the scale that fla documents."""
    calls: list[dict[str, Any]] = []

    def kernel(**arguments: Any) -> tuple[str, str]:
        calls.append(arguments)
        return "out", "state"

    module = types.ModuleType("fla.ops.gated_delta_rule")
    module.chunk_gated_delta_rule = kernel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", module)
    monkeypatch.setitem(sys.modules, "fla", types.ModuleType("fla"))
    monkeypatch.setitem(sys.modules, "fla.ops", types.ModuleType("fla.ops"))
    backend = choose("delta_rule.chunked", CUDA)
    assert backend.name == "fla"
    q = torch.randn(1, 5, 2, 16)
    assert backend.function(q, q, q, q[..., 0], q[..., 0]) == ("out", "state")
    assert calls[0]["scale"] == 0.25
    assert calls[0]["output_final_state"] is True
