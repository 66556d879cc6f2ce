"""What a request has committed, layer by layer. A pass writes beyond `length`; only `accept` makes it count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import ModelConfig
from ..ops.attention import whole_cells


@dataclass
class AttentionState:
    """Keys (rotated) and values [K, capacity, d]. Cells past the committed length are scratch: finite, meaningless."""

    keys: Tensor
    values: Tensor
    held: tuple[Tensor, Tensor] | None = None
    """Keys and values [n, K, d] of the last pass's commit rows, until it is known which of them are accepted."""

    @classmethod
    def empty(cls, config: ModelConfig, device: torch.device) -> AttentionState:
        shape = (config.num_kv_heads, 0, config.head_dim)
        return cls(torch.zeros(shape, device=device), torch.zeros(shape, device=device))

    def reserve(self, capacity: int) -> None:
        """Grow to at least `capacity` cells. New cells are zero: masked cells are multiplied by zero, never skipped."""
        have = self.keys.shape[1]
        if capacity <= have:
            return
        size = whole_cells(max(capacity, have + have // 2))  # exact attention reads whole cells of its grid
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_zeros(old.shape[0], size, old.shape[2])
            new[:, :have] = old
            setattr(self, name, new)

    def hold(self, keys: Tensor, values: Tensor) -> None:
        """Keep a pass's rows [n, K, d] at hand: those of a tree that are not in their cells may be accepted later."""
        self.held = (keys, values)

    def settle(self, rows: Sequence[int], start: int) -> None:
        """Put the held `rows` into the cells from `start` on, and forget the others."""
        if rows and self.held is not None:
            index = torch.tensor(rows)
            self.write(self.held[0][index], self.held[1][index], start)
        self.held = None

    def with_rows(self, rows: Sequence[int], start: int, cells: int) -> tuple[Tensor, Tensor]:
        """A copy of the first `cells` cells [K, cells, d] with the held `rows` in those from `start` on."""
        assert self.held is not None
        index, end = torch.tensor(rows), start + len(rows)
        keys, values = self.keys[:, :cells].clone(), self.values[:, :cells].clone()
        keys[:, start:end] = self.held[0][index].transpose(0, 1)
        values[:, start:end] = self.held[1][index].transpose(0, 1)
        return keys, values

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
        """Commit the first `count` rows of the last pass, a chain that follows the state."""
        self.accept_path(range(count))

    def accept_path(self, path: Sequence[int]) -> None:
        """Commit the rows of the last pass with these indices, each the parent of the next, and forget the others."""
        # Rows of the first chain are in their cells already.
        placed = next((i for i, row in enumerate(path) if i != row), len(path))
        for layer in self.layers:
            layer.settle(path[placed:], self.length + placed)
        self.length += len(path)

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(layer.nbytes for layer in self.layers)
