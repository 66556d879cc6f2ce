"""What a request has committed, layer by layer. A pass writes scratch; only `accept` makes it count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..config import ModelConfig
from ..ops.attention import whole_cells
from ..ops.conv import ring_after
from ..ops.delta_rule import apply
from ..ops.native.dense import accept_rows


class LayerState(Protocol):
    """One layer's part of a request's state."""

    def reserve(self, capacity: int) -> None:
        """Make room for positions below `capacity`."""
        ...

    def settle(self, path: Sequence[int], length: int) -> None:
        """Commit these rows of the last pass, each the parent of the next, after `length` positions; drop the rest."""
        ...

    def finite(self) -> bool:
        """Whether all that counts, and the last pass's scratch, is free of NaN and infinity."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...


class Cells:
    """Keys (rotated) and values of all attention layers of one request, [A, 2, K, capacity, d].

    Cells past the committed length are scratch: finite, meaningless.
    """

    def __init__(self, layers: int, config: ModelConfig, device: torch.device) -> None:
        self.data = torch.zeros(layers, 2, config.num_kv_heads, 0, config.head_dim, device=device)
        self.scratch: Tensor | None = None
        """[A, 2, n, K, d]: keys and values of the last pass's rows, commit rows first, where one call made them all."""

    @property
    def capacity(self) -> int:
        """Positions that there is room for."""
        return self.data.shape[3]

    def reserve(self, capacity: int) -> None:
        """Grow to at least `capacity` cells. New cells are zero: masked cells are multiplied by zero, never skipped."""
        have = self.capacity
        if capacity <= have:
            return
        size = whole_cells(max(capacity, have + have // 2))  # exact attention reads whole cells of its grid
        old, self.data = self.data, self.data.new_zeros(*self.data.shape[:3], size, self.data.shape[4])
        self.data[:, :, :, :have] = old


@dataclass
class AttentionState:
    """One attention layer's share of the cells."""

    cells: Cells
    index: int
    held: tuple[Tensor, Tensor] | None = None
    """Keys and values [n, K, d] of the last pass's commit rows, until it is known which of them are accepted."""

    @property
    def keys(self) -> Tensor:
        """[K, capacity, d]."""
        return self.cells.data[self.index, 0]

    @property
    def values(self) -> Tensor:
        """[K, capacity, d]."""
        return self.cells.data[self.index, 1]

    def reserve(self, capacity: int) -> None:
        """See Cells."""
        self.cells.reserve(capacity)

    def hold(self, keys: Tensor, values: Tensor) -> None:
        """Keep a pass's rows [n, K, d] at hand: those of a tree that are not in their cells may be accepted later."""
        self.held = (keys, values)

    def settle(self, path: Sequence[int], length: int) -> None:
        """Put the accepted rows into the cells from `length` on, and forget the others."""
        # Rows of the first chain are in their cells already.
        placed = next((i for i, row in enumerate(path) if i != row), len(path))
        if rows := path[placed:]:
            assert self.held is not None
            index = torch.tensor(rows)
            self.write(self.held[0][index], self.held[1][index], length + placed)
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

    def finite(self) -> bool:
        """See LayerState: the last pass's rows (cells before them were checked in their own pass)."""
        rows = self.held or ()
        if self.cells.scratch is not None:
            rows = (self.cells.scratch[self.index],)
        return all(bool(t.isfinite().all()) for t in rows)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True)
class DeltaUpdates:
    """What a pass's commit rows would do to a delta-net state.

    Conv inputs [n, C], decay [n, H], keys k [n, H, d] and updates u [n, H, e]. u_t is what row t writes, whichever rows
    are accepted after it: accepting n rows needs nothing to be computed anew.
    """

    inputs: Tensor
    decay: Tensor
    keys: Tensor
    updates: Tensor


@dataclass
class DeltaNetState:
    """The recurrent state [H, d, e] and the conv ring [width - 1, C] (the last inputs, oldest first).

    Its size does not depend on the context. Both tensors are replaced, never written to: a reader may keep them.
    """

    state: Tensor
    ring: Tensor
    held: DeltaUpdates | None = None
    """The last pass's commit rows, until it is known which of them are accepted."""
    pending: tuple[Tensor, Tensor] | None = None
    """State and ring after a prefilled chunk, which is accepted as a whole."""

    @classmethod
    def empty(cls, config: ModelConfig, device: torch.device) -> DeltaNetState:
        c = config.delta_net
        assert c is not None
        return cls(
            torch.zeros(c.value_heads, c.key_dim, c.value_dim, device=device),
            torch.zeros(c.conv_width - 1, c.conv_size, device=device),
        )

    def reserve(self, capacity: int) -> None:
        """Nothing: the state has one size."""

    def hold(self, updates: DeltaUpdates) -> None:
        """Keep a pass's updates at hand."""
        self.held, self.pending = updates, None

    def settle(self, path: Sequence[int], length: int) -> None:
        """Apply the accepted rows' updates, bit for bit as if the pass had held those rows alone."""
        if self.pending is not None:
            if path:
                self.state, self.ring = self.pending
        elif path:
            assert self.held is not None
            held = self.held
            self.state = apply(self.state, held.decay, held.keys, held.updates, path)
            self.ring = ring_after(held.inputs, self.ring, path)
        self.held = self.pending = None

    def finite(self) -> bool:
        """See LayerState."""
        tensors = [self.state, *(self.pending or ())]
        if self.held is not None:
            tensors += [self.held.inputs, self.held.updates]
        return all(bool(t.isfinite().all()) for t in tensors)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.state.nbytes + self.ring.nbytes


class RequestState:
    """All layers' states of one request, and how many positions are committed (`length`)."""

    def __init__(self, config: ModelConfig, device: torch.device | None = None) -> None:
        device = device or torch.device("cpu")
        self.cells = Cells(config.mixers.count("attention"), config, device)
        """Keys and values of its attention layers."""
        self.layers: list[LayerState] = []
        attention = 0
        for mixer in config.mixers:
            if mixer == "attention":
                self.layers.append(AttentionState(self.cells, attention))
                attention += 1
            else:
                self.layers.append(DeltaNetState.empty(config, device))
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
        if self.cells.scratch is not None:
            if path:
                self.cells.reserve(self.length + len(path))
                accept_rows(self.cells.data, self.cells.scratch, path, self.length)
            self.cells.scratch = None
        else:
            for layer in self.layers:
                layer.settle(path, self.length)
        self.length += len(path)

    @property
    def nbytes(self) -> int:
        """Bytes held by all layers."""
        return sum(layer.nbytes for layer in self.layers)
