"""SwiGLU feed-forward (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig
from .linear import Linear, LowRank


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., 2F] -> [..., F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu_exact(gate_up: Tensor) -> Tensor:
    """swiglu of which every element has the same bits wherever it stands. Not differentiable.

    F.silu takes scalar code, which rounds differently, for the elements that are left over when rows are cut into
    vectors and threads: which ones depends on the number of rows. exp and division don't.
    """
    gate, up = gate_up.chunk(2, dim=-1)
    denominator = torch.neg(gate).exp_().add_(1.0)
    return torch.div(gate, denominator, out=denominator).mul_(up)


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, config.mlp_bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias)

    def forward(self, x: Tensor, gate_up: LowRank | None = None, down: LowRank | None = None) -> Tensor:
        """[..., D] -> [..., D]; the deltas, if any, act on every row."""
        return cast(Tensor, self.down(swiglu(self.gate_up(x, gate_up)), down))

    def rows(
        self, x: Tensor, num_commit: int, tile: int | None, gate_up: LowRank | None, down: LowRank | None
    ) -> Tensor:
        """All rows of a pass; the deltas act on preview rows."""
        hidden = swiglu_exact(self.gate_up.rows(x, num_commit, tile, gate_up))
        return self.down.rows(hidden, num_commit, tile, down)
