"""Depthwise convolutions over whole sequences and blocks; differentiable.

Shapes: B sequences, T positions, C channels, K width (taps), m rows of a block.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def causal(u_BTC: Tensor, weight_CK: Tensor, ring_BKC: Tensor | None = None) -> Tensor:
    """SiLU of each channel's K last inputs times its taps; tap j is K - 1 - j steps back. -> [B, T, C].

    `ring` [B, K - 1, C]: the inputs before, oldest first; zero when None.
    """
    before = weight_CK.shape[1] - 1
    inputs = F.pad(u_BTC, (0, 0, before, 0)) if ring_BKC is None else torch.cat((ring_BKC, u_BTC), dim=-2)
    return F.silu(_taps(inputs, weight_CK, u_BTC.shape[-2]))


def two_sided(u: Tensor, ring: Tensor, left_CK: Tensor, right: Tensor) -> Tensor:
    """A preview's local features: u [..., m, C] after the ring [..., K - 1, C] -> [..., m, C].

    `left` is the causal kernel; `right` [C, K - 1] has the taps of the 1 .. K - 1 rows that follow in the block. Rows
    past the block count as zero.
    """
    rows = u.shape[-2]
    past = _taps(torch.cat((ring, u), dim=-2), left_CK, rows)
    ahead = F.pad(u[..., 1:, :], (0, 0, 0, right.shape[1]))
    return F.silu(past + _taps(ahead, right, rows))


def _taps(inputs: Tensor, weight: Tensor, count: int) -> Tensor:
    """sum_j weight[:, j] * inputs[t + j] for t < count. Products of whole slices are faster than grouped conv1d."""
    total = inputs[..., :count, :] * weight[:, 0]
    for j in range(1, weight.shape[1]):
        total = torch.addcmul(total, inputs[..., j : j + count, :], weight[:, j])
    return total
