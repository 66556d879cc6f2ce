"""The definitions that every linear kernel is held to."""

from __future__ import annotations

import torch
from torch import Tensor


def linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """y = x W^T + b, accumulated in float64, returned in float32. [N, I] x [O, I] -> [N, O]."""
    y = x_NI.double() @ weight_OI.double().T
    return (y if bias_O is None else y + bias_O).float()


def quantise_rows(x_NI: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Symmetric quantisation of rows to integers in [-limit, limit]: integers [N, I], scales [N] (x ~ q * scale).

    A row of zeros has scale 0. Ties round to even.
    """
    scale = x_NI.abs().amax(-1) / limit
    inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
    return (x_NI * inverse[:, None]).round_().clamp_(-limit, limit).to(torch.int8), scale


def int8_linear(
    x_NI: Tensor, weight_OI: Tensor, weight_scale_O: Tensor, limit: int, bias_O: Tensor | None = None
) -> Tensor:
    """Quantise rows of x, multiply integers exactly, scale back. `weight_OI` int8, `limit` bounds x's integers."""
    q, scale = quantise_rows(x_NI, limit)
    total = q.long() @ weight_OI.long().T
    y = total.float() * scale[:, None] * weight_scale_O
    return y if bias_O is None else y + bias_O
