"""Noisy copies of a batch's blocks, in the very form that decoding uses.

A block starts after a random known position p of the answer (p is the last emitted token). Its rows stand at
p + 1 .. p + m, and row p + i predicts token p + i + 1. Rows hold masks or, in part of the blocks, known tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ..config import Frozen
from ..model import MASK, Blocks
from .data import Batch
from .world import World


class NoiseConfig(Frozen):
    """How blocks are drawn. Weights need not sum to one.

    block_sizes: {size: weight}. Of the blocks, `full` are fully masked, `prefix` know a random prefix (as diffusion
    decoding does after its first passes), the rest mask each row with a ratio drawn per block.
    """

    block_sizes: dict[int, float] = Field({4: 0.8, 8: 0.15, 16: 0.05}, min_length=1)
    full: float = 0.75
    prefix: float = 0.15


@dataclass(frozen=True)
class NoisyBlocks(Blocks):
    """Blocks and what they should predict: `targets`, `previous` (the token before the target) and `loss` [B, R].

    `loss` is true where the row's target is masked and inside the sequence.
    """

    targets: Tensor
    previous: Tensor
    loss: Tensor

    def part(self, world: World) -> NoisyBlocks:
        """The blocks of one process's sequences."""
        parts: dict[str, Any] = {n: world.part(x) if isinstance(x, Tensor) else x for n, x in vars(self).items()}
        return NoisyBlocks(**parts)


def block_contexts(clean_BTD: Tensor, blocks: NoisyBlocks) -> Tensor:
    """The clean stream's final hidden vector at every block's last known position [B, R / m, D]."""
    return clean_BTD.gather(1, blocks.starts[..., None].expand(-1, -1, clean_BTD.shape[-1]))


def draw_blocks(batch: Batch, rows: int, config: NoiseConfig, rng: np.random.Generator) -> NoisyBlocks:
    """Draw `rows` noisy rows (about) for every sequence of the batch; one block size for all of them."""
    sizes = sorted(config.block_sizes)
    weights = np.array([config.block_sizes[s] for s in sizes], dtype=float)
    m = int(rng.choice(sizes, p=weights / weights.sum()))
    count = max(1, rows // m)
    size, length = batch.tokens.shape
    first, last = batch.answer[:, None] - 1, batch.length[:, None] - 3  # p + 2 must exist: row p + 1's target
    starts = first + np.floor(rng.random((size, count)) * np.maximum(last - first + 1, 1)).astype(np.int64)
    offsets = np.arange(1, m + 1)
    positions = (starts[:, :, None] + offsets).reshape(size, count * m)
    known = _known(rng, size, count, m, config)
    targets_known = np.concatenate((known[..., 1:], np.zeros_like(known[..., :1])), -1).reshape(size, -1)
    inside = positions + 1 < batch.length[:, None]

    def at(index: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.take_along_axis(batch.tokens, np.minimum(index, length - 1), 1)

    block = np.repeat(np.arange(count), m)
    clean = np.arange(length) <= np.repeat(starts, m, axis=1)[:, :, None]
    own = np.broadcast_to(block[:, None] == block, (size, count * m, count * m))
    return NoisyBlocks(
        starts=torch.from_numpy(starts),
        tokens=torch.from_numpy(np.where(known.reshape(size, -1), at(positions), MASK)),
        positions=torch.from_numpy(positions),
        block_index=torch.from_numpy(np.tile(offsets - 1, (size, count))),
        targets=torch.from_numpy(at(positions + 1)),
        previous=torch.from_numpy(at(positions)),
        loss=torch.from_numpy(inside & ~targets_known),
        visible=torch.from_numpy(np.concatenate((clean, own), axis=2))[:, None],
        block_size=m,
    )


def _known(rng: np.random.Generator, size: int, count: int, m: int, config: NoiseConfig) -> NDArray[np.bool_]:
    """Which rows hold their true token [size, count, m]."""
    kind = rng.random((size, count, 1))
    prefix = np.arange(m) < rng.integers(1, m + 1, (size, count, 1))
    ratio = rng.random((size, count, 1))
    scattered = rng.random((size, count, m)) >= ratio
    return np.where(kind < config.full, False, np.where(kind < config.full + config.prefix, prefix, scattered))
