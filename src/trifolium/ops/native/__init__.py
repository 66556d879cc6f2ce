"""Kernels in C++ for a few rows, where a compiler is at hand; see build.py.

Letters: N rows, I inputs, O outputs, D hidden size, E experts, k chosen ones, F expert size, A = N * k assignments,
H heads, d key head size, e value head size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from .build import Native, native
from .calls import address, available, int64, library, threads

__all__ = ["Native", "available", "delta_apply", "delta_rows", "native", "supports"]

DTYPES = (torch.float32, torch.bfloat16)


def supports(weight: Tensor) -> bool:
    """Whether the kernels are there, and can read this weight."""
    return weight.device.type == "cpu" and weight.dtype in DTYPES and available()


def delta_rows(
    q_NHd: Tensor,
    k_NHd: Tensor,
    v_NHe: Tensor,
    decay_NH: Tensor,
    beta_NH: Tensor,
    state_Hde: Tensor,
    keep: Collection[int],
) -> tuple[Tensor, Tensor, dict[int, Tensor], Tensor]:
    """ops.delta_rule.advance: (out [N, H, e], updates [N, H, e], states after the rows in `keep`, the last state)."""
    q, k, v, decay, beta, state = (t.contiguous() for t in (q_NHd, k_NHd, v_NHe, decay_NH, beta_NH, state_Hde))
    n, heads, d = q.shape
    e = v.shape[-1]
    rows = sorted(keep)
    index = torch.tensor(rows, dtype=torch.long)
    out, updates, last = torch.empty_like(v), torch.empty_like(v), torch.empty_like(state)
    kept = state.new_empty(len(rows), *state.shape)
    library().trifolium_delta_rows(
        *map(address, (q, k, v, decay, beta, state)), int64(n), int64(heads), int64(d), int64(e),
        address(index), int64(len(rows)), *map(address, (out, updates, kept, last)), threads(),
    )  # fmt: skip
    return out, updates, {row: kept[i] for i, row in enumerate(rows)}, last


def delta_apply(state_Hde: Tensor, decay_NH: Tensor, k_NHd: Tensor, updates_NHe: Tensor, rows: Sequence[int]) -> Tensor:
    """ops.delta_rule.apply: the state after these rows alone, bit for bit what `delta_rows` would have made of them."""
    state, decay, k, updates = (t.contiguous() for t in (state_Hde, decay_NH, k_NHd, updates_NHe))
    last = torch.empty_like(state)
    index = torch.tensor(list(rows), dtype=torch.long)
    library().trifolium_delta_apply(
        *map(address, (decay, k, updates, state, index)), int64(len(rows)), *map(int64, state.shape), address(last),
        threads(),
    )  # fmt: skip
    return last
