"""The depthwise convolutions over time as plain loops: the definition of the fast paths.

Shapes: T positions, C channels, K width (taps). The ring holds the K - 1 inputs before position 0, oldest first.
"""

from __future__ import annotations

import torch
from torch import Tensor


def silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x))."""
    return x / (1 + torch.exp(-x))


def causal(u_TC: Tensor, weight_CK: Tensor, ring: Tensor) -> Tensor:
    """SiLU of each channel's K last inputs, the current one included, times its taps. -> [T, C].

    Tap j multiplies the input K - 1 - j steps back, as in a convolution with padding on the left.
    """
    return two_sided(u_TC, ring, weight_CK, torch.zeros_like(weight_CK[:, 1:]))


def two_sided(u_TC: Tensor, ring: Tensor, left_CK: Tensor, right: Tensor) -> Tensor:
    """`causal`, with `right` [C, K - 1] taps on the 1 .. K - 1 inputs that follow in the block. -> [T, C].

    Inputs past the block count as zero.
    """
    length, width = len(u_TC), left_CK.shape[1]
    inputs = torch.cat((ring, u_TC))
    out = torch.zeros_like(u_TC)
    for t in range(length):
        for j in range(width):
            out[t] += left_CK[:, j] * inputs[t + j]
        for ahead in range(1, width):
            if t + ahead < length:
                out[t] += right[:, ahead - 1] * u_TC[t + ahead]
    return silu(out)
