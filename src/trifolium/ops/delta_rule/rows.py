"""The gated delta rule for the rows of one request in a pass: inference only, each row's bits its own.

Shapes: N rows, H value heads, d key head size, e value head size.

A row's bits depend on the state and on the rows before it, never on how many rows follow or what other requests do.
Every operation treats one row in shapes that N doesn't change, on tensors that start at a cache line: matrix libraries
may round by shape and by alignment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...errors import UsageError
from .. import native


class Advanced(NamedTuple):
    """Outputs [N, H, e], updates u_t [N, H, e], the states [H, d, e] after the rows asked for, and after all rows."""

    out: Tensor
    updates: Tensor
    kept: dict[int, Tensor]
    last: Tensor


def advance(
    q_NHd: Tensor,
    k_NHd: Tensor,
    v_NHe: Tensor,
    decay_NH: Tensor,
    beta_NH: Tensor,
    state_Hde: Tensor,
    keep: Collection[int] = (),
) -> Advanced:
    """`reference.recurrent` over rows in order; `decay` is exp(g). `state` stays as it is.

    `keep`: rows after which the state is wanted. Raises UsageError for one that doesn't exist.
    """
    if any(not 0 <= row < len(q_NHd) for row in keep):
        raise UsageError(f"can keep the state after rows 0 .. {len(q_NHd) - 1}; asked for {sorted(keep)}")
    if native.supports(state_Hde):
        return Advanced(*native.delta_rows(q_NHd, k_NHd, v_NHe, decay_NH, beta_NH, state_Hde, keep))
    scale = q_NHd.shape[-1] ** -0.5
    state = _own(state_Hde)
    out, updates = torch.empty_like(v_NHe), torch.empty_like(v_NHe)
    kept = {}
    for row in range(len(q_NHd)):
        q, k, v = _own(q_NHd[row]), _own(k_NHd[row]), _own(v_NHe[row])
        state.mul_(_own(decay_NH[row])[:, None, None])
        read = torch.bmm(k[:, None], state)[:, 0]
        update = torch.sub(v, read, out=read).mul_(_own(beta_NH[row])[:, None])
        _write(state, k, update)
        out[row] = torch.bmm(q[:, None], state)[:, 0].mul_(scale)
        updates[row] = update
        if row in keep:
            kept[row] = state.clone()
    return Advanced(out, updates, kept, state)


def apply(state_Hde: Tensor, decay_NH: Tensor, k_NHd: Tensor, updates_NHe: Tensor, rows: Sequence[int]) -> Tensor:
    """A new state [H, d, e]: what `advance` left after these rows alone, bit for bit, from the updates it returned.

    The updates must come from an `advance` that saw the same rows before each of them.
    """
    if native.supports(state_Hde):
        return native.delta_apply(state_Hde, decay_NH, k_NHd, updates_NHe, rows)
    state = _own(state_Hde)
    for row in rows:
        state.mul_(_own(decay_NH[row])[:, None, None])
        _write(state, _own(k_NHd[row]), _own(updates_NHe[row]))
    return state


def _write(state_Hde: Tensor, k_Hd: Tensor, update_He: Tensor) -> None:
    """S <- S + k u^T, in place."""
    state_Hde.baddbmm_(k_Hd[:, :, None], update_He[:, None])


def _own(x: Tensor) -> Tensor:
    """A copy that starts at a cache line, whatever row of whatever tensor it was."""
    return x.clone(memory_format=torch.contiguous_format)
