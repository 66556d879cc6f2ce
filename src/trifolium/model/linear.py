"""A frozen base weight, its kernel, and the low-rank delta that preview rows add."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..ops.linear import LinearKernel, linear_kernel
from ..ops.linear.quantised import Groups, QuantisedWeight


class LowRank(nn.Module):
    """x -> scale * (x down^T) up^T (Hu et al. 2021, arXiv:2106.09685). down [r, I], up [O, r]; starts as zero."""

    def __init__(self, in_features: int, out_features: int, rank: int, scale: float) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, in_features))
        self.up = nn.Parameter(torch.zeros(out_features, rank))
        self.scale = scale

    def reset(self, generator: torch.Generator) -> None:
        """Random `down` of unit output variance for unit input, zero `up`."""
        nn.init.normal_(self.down, std=self.down.shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.up)

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(F.linear(x, self.down), self.up)
        return y if self.scale == 1 else y * self.scale


class Linear(nn.Module):
    """y = x W^T + b, plus `delta(x)` on preview rows. The base weight never trains.

    Training and full-sequence calls use `forward` on the plain weight; the engine calls `rows` after `pack`.
    `precise`: the engine's products are float32 whatever it is packed for (routers: a choice hangs on them).
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, *, precise: bool = False) -> None:
        super().__init__()
        self.precise = precise
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        self.quantised: QuantisedWeight | Groups | None = None
        """The weight, where it came quantised, until it is packed."""
        self.kernel: LinearKernel | None = None

    def pack(self, dtype: torch.dtype, *, keep: bool) -> None:
        """Build the kernel for `dtype` (float32, bfloat16, int8 or int4); drop the plain weight unless `keep`."""
        bias = None if self.bias is None else self.bias.data
        weight = self.weight.data
        if self.precise:
            dtype = torch.float32
        self.kernel = linear_kernel(weight if self.quantised is None else self.quantised, bias, dtype)
        self.quantised = None
        if not keep:
            self.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)

    def forward(self, x: Tensor, delta: LowRank | None = None) -> Tensor:
        """x [..., I] -> [..., O] on the plain weight; differentiable."""
        y = F.linear(x, self.weight, self.bias)
        return y if delta is None else y + delta(x)

    def rows(self, x_NI: Tensor, num_commit: int, tile: int | None, delta: LowRank | None) -> Tensor:
        """All rows of a pass [N, I] -> [N, O]; `delta` acts on the rows from `num_commit` on."""
        assert self.kernel is not None, "pack() comes before rows()"
        y = self.kernel(x_NI, num_commit, tile)
        if delta is not None and num_commit < len(x_NI):
            y[num_commit:] += delta(x_NI[num_commit:])
        return y
