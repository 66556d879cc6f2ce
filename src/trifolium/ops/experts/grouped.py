"""Experts over rows that are grouped by expert: only experts that have rows are touched.

Letters: N rows, D hidden size, E experts, k chosen ones, F expert size, A = N * k assignments of a row to an expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import native
from ..formats import INT4
from ..linear import Int8Linear, pack_weight
from ..linear.quantised import quantise_groups
from ..native.experts import PackedExperts
from ..pointwise import swiglu, swiglu_exact
from .routing import Routing

TILE = 16
"""Rows of an exact float product, as in linear products (model.rows.ROW_TILE)."""


class ExpertsKernel(Protocol):
    """The packed weights of one mixture's experts."""

    exact: bool
    """Whether a commit row's output is the same bits in any pass."""

    def __call__(self, x_ND: Tensor, routing: Routing, num_commit: int, exact: bool) -> Tensor:
        """Rows [N, D] -> [N, D]. `exact`: the first `num_commit` rows must not depend on the others."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        ...


def groups(experts_A: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(expert, indices of its assignments, ascending) for every expert that has any."""
    order = experts_A.argsort(stable=True)
    chosen, counts = experts_A[order].unique_consecutive(return_counts=True)
    yield from zip(chosen.tolist(), order.split(counts.tolist()), strict=True)


def by_assignment(routing: Routing, run: Callable[[int, Tensor], Tensor], like: Tensor) -> Tensor:
    """Outputs [N, k, D] of `run(expert, rows)` for every assignment, rows ascending."""
    k = routing.experts.shape[1]
    out = like.new_empty(routing.experts.numel(), like.shape[1])
    for expert, assignments in groups(routing.experts.flatten()):
        out[assignments] = run(expert, assignments // k)
    return out.view(-1, k, like.shape[1])


def combine(outputs_NkD: Tensor, weights_Nk: Tensor) -> Tensor:
    """sum over a row's experts of weight * output, in the order of its slots, whatever else runs. -> [N, D]."""
    weighted = outputs_NkD * weights_Nk[..., None]
    y = weighted[:, 0]
    for slot in range(1, weighted.shape[1]):
        y = y + weighted[:, slot]
    return y


def experts_train(x_ND: Tensor, routing: Routing, gate_up_EFD: Tensor, down_EDF: Tensor) -> Tensor:
    """See reference.experts; differentiable."""
    k = routing.experts.shape[1]
    parts, order = [], []
    for expert, assignments in groups(routing.experts.flatten()):
        hidden = swiglu(F.linear(x_ND[assignments // k], gate_up_EFD[expert]))
        parts.append(F.linear(hidden, down_EDF[expert]))
        order.append(assignments)
    outputs = torch.cat(parts)[torch.cat(order).argsort()].view(len(x_ND), k, -1)
    return (outputs * routing.weights[..., None].to(outputs.dtype)).sum(1)


class NativeExperts:
    """Products by the native kernels, in float32, bfloat16, int8 or int4: no row depends on another."""

    exact = True

    def __init__(self, gate_up_EFD: Tensor, down_EDF: Tensor, dtype: torch.dtype) -> None:
        gate_up, down = ([pack_weight(w, None, dtype) for w in side] for side in (gate_up_EFD, down_EDF))
        self.packed = PackedExperts(gate_up, down)

    def __call__(self, x_ND: Tensor, routing: Routing, num_commit: int, exact: bool) -> Tensor:
        return combine(self.packed(x_ND, routing.experts), routing.weights)

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes


class FloatExperts:
    """Products in float32 or bfloat16 by torch, with an expert's exact rows in tiles."""

    def __init__(self, gate_up_EFD: Tensor, down_EDF: Tensor, dtype: torch.dtype) -> None:
        self.gate_up, self.down = gate_up_EFD.to(dtype).contiguous(), down_EDF.to(dtype).contiguous()
        self.exact = dtype == torch.float32

    def __call__(self, x_ND: Tensor, routing: Routing, num_commit: int, exact: bool) -> Tensor:
        x = x_ND.to(self.gate_up.dtype)
        if not (exact and self.exact):
            outputs = by_assignment(routing, lambda expert, rows: self._run(expert, x[rows]), x)
            return combine(outputs.float(), routing.weights)
        commit = Routing(routing.experts[:num_commit], routing.weights[:num_commit])
        rest = Routing(routing.experts[num_commit:], routing.weights[num_commit:])
        parts = [by_assignment(commit, lambda expert, rows: self._tiles(expert, x[rows]), x)]
        previews = x[num_commit:]
        if len(previews):
            parts.append(by_assignment(rest, lambda expert, rows: self._run(expert, previews[rows]), x))
        return combine(torch.cat(parts), routing.weights)

    def _run(self, expert: int, x: Tensor) -> Tensor:
        return F.linear(swiglu_exact(F.linear(x, self.gate_up[expert])), self.down[expert])

    def _tiles(self, expert: int, x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, 0, -len(x) % TILE))
        return torch.cat([self._run(expert, tile) for tile in padded.split(TILE)])[: len(x)]

    @property
    def nbytes(self) -> int:
        return self.gate_up.nbytes + self.down.nbytes


class Int8Experts:
    """int8 x int8 products: exact sums, so rows of every kind share one product of an expert."""

    exact = True

    def __init__(self, gate_up_EFD: Tensor, down_EDF: Tensor) -> None:
        self.gate_up = [Int8Linear(weight, None) for weight in gate_up_EFD]
        self.down = [Int8Linear(weight, None) for weight in down_EDF]

    def __call__(self, x_ND: Tensor, routing: Routing, num_commit: int, exact: bool) -> Tensor:
        outputs = by_assignment(routing, lambda expert, rows: self._run(expert, x_ND[rows]), x_ND)
        return combine(outputs, routing.weights)

    def _run(self, expert: int, x: Tensor) -> Tensor:
        return self.down[expert](swiglu_exact(self.gate_up[expert](x, len(x), None)), len(x), None)

    @property
    def nbytes(self) -> int:
        return sum(linear.nbytes for linear in (*self.gate_up, *self.down))


def experts_kernel(gate_up_EFD: Tensor, down_EDF: Tensor, dtype: torch.dtype) -> ExpertsKernel:
    """The kernel of a mixture's experts in float32, bfloat16, int8 or int4: native where there is a compiler.

    Without one, int4 keeps its values and computes in float32.
    """
    if native.available() and gate_up_EFD.device.type == "cpu":
        return NativeExperts(gate_up_EFD, down_EDF, dtype)
    if dtype == torch.int8:
        return Int8Experts(gate_up_EFD, down_EDF)
    if dtype == INT4:
        gate_up, down = (
            torch.stack([quantise_groups(w).dequantise() for w in side]) for side in (gate_up_EFD, down_EDF)
        )
        return FloatExperts(gate_up, down, torch.float32)
    return FloatExperts(gate_up_EFD, down_EDF, dtype)
