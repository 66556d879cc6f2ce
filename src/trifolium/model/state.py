"""What a request has committed, layer by layer. A pass writes beyond `length`; only `accept` makes it count."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import ModelConfig

KV_GRID = 64
"""Capacity grows in whole grid cells; it is also the grid on which exact attention cuts its context."""


@dataclass
class AttentionState:
    """Keys (rotated) and values [K, capacity, d]. Cells past the length are scratch, finite but meaningless."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(cls, config: ModelConfig, device: torch.device) -> AttentionState:
        shape = (config.num_kv_heads, 0, config.head_dim)
        return cls(torch.zeros(shape, device=device), torch.zeros(shape, device=device))

    def reserve(self, capacity: int) -> None:
        """Grow to at least `capacity` cells. New cells are zero: masked cells are multiplied by zero, never skipped."""
        have = self.keys.shape[1]
        if capacity <= have:
            return
        size = max(capacity, have + have // 2)
        size += -size % KV_GRID
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(old.shape[0], size, old.shape[2])
            new[:, :have] = old
            setattr(self, name, new)

    def write(self, keys: Tensor, values: Tensor, start: int) -> None:
        """Put keys, values [n, K, d] into the cells from `start` on."""
        end = start + len(keys)
        self.keys[:, start:end] = keys.transpose(0, 1)
        self.values[:, start:end] = values.transpose(0, 1)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.values.nbytes


class RequestState:
    """All layers' states of one request, and how many positions are committed (`length`)."""

    def __init__(self, config: ModelConfig, device: torch.device | None = None) -> None:
        device = device or torch.device("cpu")
        self.layers = [AttentionState.empty(config, device) for _ in config.mixers]
        self.length = 0

    def reserve(self, capacity: int) -> None:
        """Make room for positions below `capacity`."""
        for layer in self.layers:
            layer.reserve(capacity)

    def accept(self, count: int) -> None:
        """Commit the first `count` rows that the last pass wrote for this request."""
        self.length += count

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(layer.nbytes for layer in self.layers)
