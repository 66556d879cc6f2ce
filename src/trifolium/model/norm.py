"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def rms_normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension, computed in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class RMSNorm(nn.Module):
    """rms_normalise(x) * (offset + weight), over vectors [..., size]. Qwen3.5's norms have offset 1."""

    def __init__(self, size: int, eps: float, offset: int = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.0 - offset), requires_grad=False)
        self.eps = eps
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight + self.offset if self.offset else self.weight
        return rms_normalise(x, self.eps) * scale
