"""The gated delta rule over whole sequences, a chunk at a time (Yang et al. 2024, arXiv:2412.06464, section 3).

Shapes: B sequences, T positions, H value heads, d key head size, e value head size, L positions of a chunk, c chunks,
n positions to read.

With G_t the sum of log-decays from the chunk's start to t, and S_0 the state there, the recurrence unrolls to

    S_t = exp(G_t) S_0 + sum_{s<=t} exp(G_t - G_s) k_s u_s^T
    u_t + beta_t sum_{s<t} exp(G_t - G_s) <k_t, k_s> u_s = beta_t v_t - beta_t exp(G_t) S_0^T k_t

so all updates of a chunk solve one unit lower triangular system, whose right side is affine in S_0. Its two parts are
solved for all chunks at once; only the states go from chunk to chunk. Exponents are never positive.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import UsageError

CHUNK = 64


class Trace(NamedTuple):
    """What `state_at` reads: any state of a sequence follows from its chunk's first state and the updates since.

    `boundaries` [B, c, H, d, e]: the state at each chunk's start. `keys` [B, T, H, d] as given. `updates` [B, T, H, e]:
    u_t of the recurrence. `log_decay` [B, T, H]: the sum of log-decays from the chunk's start, t included.
    """

    boundaries: Tensor
    keys: Tensor
    updates: Tensor
    log_decay: Tensor
    chunk: int


class Chunked(NamedTuple):
    """Outputs [B, T, H, e], the state [B, H, d, e] after the last position, and the way there."""

    out: Tensor
    state: Tensor
    trace: Trace


def chunked(
    q_BTHd: Tensor,
    k_BTHd: Tensor,
    v_BTHe: Tensor,
    g_BTH: Tensor,
    beta_BTH: Tensor,
    state: Tensor | None = None,
    chunk: int = CHUNK,
) -> Chunked:
    """`reference.recurrent` for any T, in the inputs' dtype; differentiable. `state` [B, H, d, e] is zero when None.

    q and k come L2-normalised and repeated to value heads; g is the log of the decay, at most 0.
    """
    length, d = q_BTHd.shape[1], q_BTHd.shape[-1]
    if state is None:
        state = v_BTHe.new_zeros(q_BTHd.shape[0], q_BTHd.shape[2], d, v_BTHe.shape[-1])
    q, k, v = (_cut(t, chunk) for t in (q_BTHd, k_BTHd, v_BTHe))
    g, beta = (_cut(t[..., None], chunk) for t in (g_BTH, beta_BTH))
    total_BHcL1 = g.cumsum(-2)
    causal = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay_BHcLL = (total_BHcL1 - total_BHcL1.mT).masked_fill(~causal, -torch.inf).exp()
    since_start = total_BHcL1.exp()
    to_end = decay_BHcLL[..., -1, :, None]

    # The solver takes the diagonal as ones and doesn't read what is above it.
    system = beta * decay_BHcLL * (k @ k.mT)
    right = torch.cat((beta * v, beta * since_start * k), dim=-1)
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    fresh, read = solved.split((v.shape[-1], d), dim=-1)

    written = (k * to_end).mT
    kept = since_start[..., -1:, :]
    boundaries, updates = [], []
    for c in range(q.shape[2]):
        boundaries.append(state)
        update = fresh[:, :, c] - read[:, :, c] @ state
        state = kept[:, :, c] * state + written[:, :, c] @ update
        updates.append(update)
    firsts = torch.stack(boundaries, 2) if boundaries else state[:, :, None][:, :, :0]
    update = torch.stack(updates, 2) if updates else fresh

    out = (q * since_start) @ firsts + (decay_BHcLL * (q @ k.mT)) @ update
    trace = Trace(firsts.transpose(1, 2), k_BTHd, _join(update, length), _join(total_BHcL1, length)[..., 0], chunk)
    return Chunked(_join(out, length) * d**-0.5, state, trace)


def _cut(x_BTHn: Tensor, chunk: int) -> Tensor:
    """[B, T, H, n] -> [B, H, c, L, n]. Padding rows write nothing (k = 0) and don't decay (g = 0)."""
    x = F.pad(x_BTHn, (0, 0, 0, 0, 0, -x_BTHn.shape[1] % chunk))
    b, length, heads, n = x.shape
    return x.reshape(b, length // chunk, chunk, heads, n).permute(0, 3, 1, 2, 4).contiguous()


def _join(x_BHcLn: Tensor, length: int) -> Tensor:
    """[B, H, c, L, n] -> [B, T, H, n]."""
    joined: Tensor = x_BHcLn.permute(0, 2, 3, 1, 4).flatten(1, 2)
    return joined[:, :length]


def state_at(trace: Trace, positions_Bn: Tensor) -> Tensor:
    """The states [B, n, H, d, e] after the given positions, each included; -1 is the initial state. Differentiable.

    Raises UsageError if a position is outside -1 .. T - 1.
    """
    length = trace.keys.shape[1]
    if positions_Bn.numel() and not (int(positions_Bn.min()) >= -1 and int(positions_Bn.max()) < length):
        raise UsageError(f"states exist at positions -1 .. {length - 1}; asked for {positions_Bn.tolist()}")
    sequence = torch.arange(len(positions_Bn), device=positions_Bn.device)[:, None]
    chunk = positions_Bn.clamp(min=0) // trace.chunk
    inside = chunk[..., None] * trace.chunk + torch.arange(trace.chunk, device=positions_Bn.device)
    seen_BnL1 = (inside <= positions_Bn[..., None])[..., None]
    inside = inside.clamp(max=length - 1)
    total_Bn1H = trace.log_decay[sequence, positions_Bn.clamp(min=0)][:, :, None]
    started_Bn11 = (positions_Bn >= 0)[..., None, None]
    difference = total_Bn1H - trace.log_decay[sequence[..., None], inside]
    weight_BnLH = difference.masked_fill(~seen_BnL1, -torch.inf).exp()
    keys = trace.keys[sequence[..., None], inside] * weight_BnLH[..., None]
    written = torch.einsum("bnlhd,bnlhe->bnhde", keys, trace.updates[sequence[..., None], inside])
    kept = total_Bn1H.masked_fill(~started_Bn11, 0.0).exp()[:, :, 0, :, None, None]
    return kept * trace.boundaries[sequence, chunk] + written
