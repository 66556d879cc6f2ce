"""What a preview mixer learns, and where it starts.

Shapes: H value heads, C conv channels, K conv width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class PreviewParams(NamedTuple):
    """Kernels and logits of one layer's previews. Channels are q | k | v: C = 2 key_heads key_dim + H e.

    `left_CK` is the commit's causal kernel; `right` [C, K - 1] has the taps of the rows that follow in the block.
    `logit_scale_H` scales <q, k>; the history slot's logit is history_bias + history_c log(rows of the block).
    """

    left_CK: Tensor
    right: Tensor
    logit_scale_H: Tensor
    history_bias_H: Tensor
    history_c_H: Tensor
    key_heads: int
    key_dim: int


def initial_preview(heads: int, channels: int, width: int, history_mass: float = 0.95) -> dict[str, Tensor]:
    """Parameters of a mixer that was never trained: previews read the history almost as a commit row would.

    The right kernel is zero. With logits l_ij near 0 and history_c = 1, the history slot has the mass

        exp(bias) m / (exp(bias) m + m) = sigmoid(bias)

    in a block of any m rows, so bias = log(history_mass / (1 - history_mass)) gives it the mass asked for.
    """
    return {
        "right": torch.zeros(channels, width - 1),
        "logit_scale": torch.ones(heads),
        "history_bias": torch.full((heads,), math.log(history_mass / (1 - history_mass))),
        "history_c": torch.ones(heads),
    }
