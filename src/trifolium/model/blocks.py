"""Noisy blocks beside clean sequences: what the preview side of training reads.

Shapes: B sequences, T clean positions, R noisy rows a sequence in blocks of m.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Blocks:
    """Blocks of `block_size` preview rows each, every block with a context of its own.

    `starts` [B, R / m]: the last clean position that a block's context holds. `tokens` (MASK where masked),
    `positions`, `block_index` [B, R]. `visible` [B, 1, R, T + R]: bool or additive, which clean positions and which
    rows each row sees in attention.
    """

    starts: Tensor
    tokens: Tensor
    positions: Tensor
    block_index: Tensor
    visible: Tensor
    block_size: int

    def split(self, x: Tensor) -> Tensor:
        """Rows [B, R, ...] as blocks [B, R / m, m, ...]."""
        return x.view(len(x), -1, self.block_size, *x.shape[2:])
