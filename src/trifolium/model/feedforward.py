"""SwiGLU feed-forward (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from ..ops.pointwise import swiglu, swiglu_exact
from .adapter import LayerDeltas
from .linear import Linear
from .rows import Rows


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)), of `size` hidden features."""

    def __init__(self, hidden_size: int, size: int, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = Linear(hidden_size, 2 * size, bias)
        self.down = Linear(size, hidden_size, bias)

    def forward(self, x: Tensor, deltas: LayerDeltas | None = None) -> Tensor:
        """[..., D] -> [..., D]; the deltas, if any, act on every row."""
        return cast(
            Tensor,
            self.down(swiglu(self.gate_up(x, deltas.gate_up if deltas else None)), deltas.down if deltas else None),
        )

    def rows(self, x: Tensor, rows: Rows, deltas: LayerDeltas | None) -> Tensor:
        """All rows of a pass; the deltas act on preview rows."""
        n, tile = rows.num_commit, rows.tile
        hidden = swiglu_exact(self.gate_up.rows(x, n, tile, deltas.gate_up if deltas else None))
        return self.down.rows(hidden, n, tile, deltas.down if deltas else None)
