"""The definitions that every linear kernel is held to."""

from __future__ import annotations

import torch
from torch import Tensor


def linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """y = x W^T + b, accumulated in float64, returned in float32. [N, I] x [O, I] -> [N, O]."""
    y = x_NI.double() @ weight_OI.double().T
    return (y if bias_O is None else y + bias_O).float()


def quantise_rows(x_NI: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Symmetric quantisation of each row: integers [N, I] in [-limit, limit] and scales [N], x ~ q * scale.

    Values are rounded to nearest after a product with the rounded 1 / scale; ties go to even. A row whose scale would
    be below the smallest normal number has scale 0 and zeros: 1 / scale would overflow. A row that holds a NaN or an
    infinity has scale NaN and zeros: its products are NaN, so that the fault shows, and no other row is touched.
    """
    scale = x_NI.abs().amax(-1) / limit
    finite = scale.isfinite()
    if not finite.all():
        x_NI = x_NI.where(finite[:, None], 0.0)
        scale = scale.where(finite, torch.nan)
    scale = scale.masked_fill(scale < torch.finfo(torch.float32).tiny, 0.0)
    inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
    return (x_NI * inverse[:, None]).round_().clamp_(-limit, limit).to(torch.int8), scale


def int8_linear(
    x_NI: Tensor, weight_OI: Tensor, weight_scale_O: Tensor, limit: int, bias_O: Tensor | None = None
) -> Tensor:
    """Quantise rows of x, multiply integers exactly, scale back. `weight_OI` int8, `limit` bounds x's integers."""
    q, scale = quantise_rows(x_NI, limit)
    total = q.long() @ weight_OI.long().T
    y = total.float() * weight_scale_O * scale[:, None]
    return y if bias_O is None else y + bias_O
