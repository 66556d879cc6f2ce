"""What a request has committed, layer by layer. A pass writes scratch; only `accept` makes it count.

Two kinds of things are kept: cells, one for each position (keys and values), and recurrent state, one tensor for all
positions together. Cells can be copied for any stretch of positions; recurrent state only as it stands now.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..config import ModelConfig
from ..ops.attention import whole_cells
from ..ops.conv import ring_after
from ..ops.delta_rule import apply
from ..ops.native.dense import accept_rows

STATE_DTYPE = torch.float32


Parts = tuple[tuple[Tensor, ...], ...]
"""A few tensors for each layer, none for layers that have nothing of the kind."""


def parts_nbytes(parts: Parts) -> int:
    """Bytes of all layers' tensors."""
    return sum(tensor.nbytes for layer in parts for tensor in layer)


def cut_cells(cells: Parts, start: int, end: int) -> Parts:
    """Copies of positions [start, end) of cells [K, n, d]: what is left of the original can be freed."""
    return tuple(tuple(tensor[:, start:end].clone() for tensor in layer) for layer in cells)


@dataclass(frozen=True)
class StateSize:
    """Bytes of a state: `fixed` at any length, and `cell` for each position that there is room for."""

    fixed: int
    cell: int

    def at(self, capacity: int) -> int:
        """Bytes with room for positions below `capacity`."""
        return self.fixed + self.cell * whole_cells(capacity)

    @staticmethod
    def of(config: ModelConfig) -> StateSize:
        """All layers of a model together."""
        sizes = [_KINDS[mixer].size(config) for mixer in config.mixers]
        return StateSize(sum(size.fixed for size in sizes), sum(size.cell for size in sizes))


class LayerState(Protocol):
    """One layer's part of a request's state."""

    @staticmethod
    def size(config: ModelConfig) -> StateSize:
        """Bytes that it takes."""
        ...

    def reserve(self, capacity: int) -> None:
        """Make room for positions below `capacity`."""
        ...

    def cells(self, start: int, end: int) -> tuple[Tensor, ...]:
        """Copies [K, n, d] of what is kept for each of the positions [start, end); () if nothing is."""
        ...

    def put_cells(self, cells: tuple[Tensor, ...], start: int) -> None:
        """Write what `cells` gave to the positions from `start` on; there must be room."""
        ...

    def snapshot(self) -> tuple[Tensor, ...]:
        """Copies of what stands for all committed positions together; () if nothing does."""
        ...

    def restore(self, snapshot: tuple[Tensor, ...]) -> None:
        """Take over what `snapshot` gave; it may be given to many states."""
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


class AttentionCells:
    """Keys (rotated) and values of all attention layers of one request, [A, 2, K, capacity, d].

    Cells past the committed length are scratch: finite, meaningless.
    """

    def __init__(self, layers: int, config: ModelConfig, device: torch.device) -> None:
        shape = (layers, 2, config.num_kv_heads, 0, config.head_dim)
        self.data = torch.zeros(shape, device=device, dtype=STATE_DTYPE)
        self.scratch: Tensor | None = None
        """[A, 2, n, K, d]: keys and values of the last pass's commit rows, where one call made those of all layers."""

    def reserve(self, capacity: int) -> None:
        """Grow to at least `capacity` cells. New cells are zero: masked cells are multiplied by zero, never skipped."""
        have = self.data.shape[3]
        if capacity <= have:
            return
        size = whole_cells(capacity)  # exact attention reads whole cells of its grid
        old, self.data = self.data, self.data.new_zeros(*self.data.shape[:3], size, self.data.shape[4])
        self.data[:, :, :, :have] = old


@dataclass
class AttentionState:
    """One attention layer's share, number `index`, of a request's cells."""

    shared: AttentionCells
    index: int
    held: tuple[Tensor, Tensor] | None = None
    """Keys and values [n, K, d] of the last pass's commit rows, until it is known which of them are accepted."""

    @staticmethod
    def size(config: ModelConfig) -> StateSize:
        """See LayerState."""
        return StateSize(0, 2 * config.kv_size * STATE_DTYPE.itemsize)

    @property
    def keys(self) -> Tensor:
        """[K, capacity, d]."""
        return self.shared.data[self.index, 0]

    @property
    def values(self) -> Tensor:
        """[K, capacity, d]."""
        return self.shared.data[self.index, 1]

    def reserve(self, capacity: int) -> None:
        """See AttentionCells."""
        self.shared.reserve(capacity)

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

    def cells(self, start: int, end: int) -> tuple[Tensor, ...]:
        """See LayerState: keys and values."""
        return self.keys[:, start:end].clone(), self.values[:, start:end].clone()

    def put_cells(self, cells: tuple[Tensor, ...], start: int) -> None:
        """See LayerState."""
        keys, values = cells
        self.keys[:, start : start + keys.shape[1]] = keys
        self.values[:, start : start + values.shape[1]] = values

    def snapshot(self) -> tuple[Tensor, ...]:
        """Nothing: it has cells only."""
        return ()

    def restore(self, snapshot: tuple[Tensor, ...]) -> None:
        """Nothing."""

    def finite(self) -> bool:
        """See LayerState: the last pass's rows (cells before them were checked in their own pass)."""
        rows: tuple[Tensor, ...] = self.held or ()
        if self.shared.scratch is not None:
            rows = (self.shared.scratch[self.index],)
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
            torch.zeros(c.value_heads, c.key_dim, c.value_dim, device=device, dtype=STATE_DTYPE),
            torch.zeros(c.conv_width - 1, c.conv_size, device=device, dtype=STATE_DTYPE),
        )

    @staticmethod
    def size(config: ModelConfig) -> StateSize:
        """See LayerState."""
        c = config.delta_net
        assert c is not None
        values = c.value_heads * c.key_dim * c.value_dim + (c.conv_width - 1) * c.conv_size
        return StateSize(values * STATE_DTYPE.itemsize, 0)

    def reserve(self, capacity: int) -> None:
        """Nothing: the state has one size."""

    def cells(self, start: int, end: int) -> tuple[Tensor, ...]:
        """Nothing: the state stands for all positions together."""
        return ()

    def put_cells(self, cells: tuple[Tensor, ...], start: int) -> None:
        """Nothing."""

    def snapshot(self) -> tuple[Tensor, ...]:
        """See LayerState: state and ring."""
        return self.state.clone(), self.ring.clone()

    def restore(self, snapshot: tuple[Tensor, ...]) -> None:
        """See LayerState."""
        self.state, self.ring = (tensor.clone() for tensor in snapshot)

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


_KINDS: Mapping[str, type[AttentionState | DeltaNetState]] = {"attention": AttentionState, "delta_net": DeltaNetState}


class RequestState:
    """All layers' states of one request, and how many positions are committed (`length`).

    Layers are made when they are first read, so that a request that waits holds nothing. `most`: the request will never
    have more positions, so that room need not grow past them.
    """

    def __init__(self, config: ModelConfig, device: torch.device | None = None) -> None:
        self.size = StateSize.of(config)
        self._config = config
        self._device = device or torch.device("cpu")
        self._layers: list[LayerState] | None = None
        self.attention = AttentionCells(0, config, self._device)
        """Keys and values of its attention layers."""
        self.most: int | None = None
        self.length = 0
        self.capacity = 0
        self.nbytes = 0
        """Bytes held by all layers, scratch included."""

    @property
    def layers(self) -> list[LayerState]:
        """Every layer's state, in order."""
        if self._layers is None:
            config, self._layers = self._config, []
            self.attention = AttentionCells(config.mixers.count("attention"), config, self._device)
            attention = itertools.count()
            for mixer in config.mixers:
                if mixer == "attention":
                    self._layers.append(AttentionState(self.attention, next(attention)))
                else:
                    self._layers.append(DeltaNetState.empty(config, self._device))
            self._count()
        return self._layers

    def _count(self) -> None:
        self.nbytes = sum(layer.nbytes for layer in self._layers or ())

    def reserve(self, capacity: int) -> None:
        """Make room for positions below `capacity`, by half as much again as there was, so that growing is rare."""
        if capacity > self.capacity:
            self.capacity = self._grown(capacity)
            for layer in self.layers:
                layer.reserve(self.capacity)
            self._count()

    def growth(self, capacity: int) -> int:
        """Bytes that `reserve(capacity)` would add."""
        return 0 if capacity <= self.capacity else self.size.at(self._grown(capacity)) - self.nbytes

    def _grown(self, capacity: int) -> int:
        roomy = self.capacity + self.capacity // 2
        return whole_cells(max(capacity, roomy if self.most is None else min(roomy, self.most)))

    def accept(self, count: int) -> None:
        """Commit the first `count` rows of the last pass, a chain that follows the state."""
        self.accept_path(range(count))

    def accept_path(self, path: Sequence[int]) -> None:
        """Commit the rows of the last pass with these indices, each the parent of the next, and forget the others."""
        if self.attention.scratch is not None:
            if path:
                accept_rows(self.attention.data, self.attention.scratch, path, self.length)
            self.attention.scratch = None
        else:
            for layer in self.layers:
                layer.settle(path, self.length)
        self.length += len(path)

    def cells(self, start: int, end: int) -> Parts:
        """Copies of what all layers keep for each of the committed positions [start, end)."""
        return tuple(layer.cells(start, end) for layer in self.layers)

    def snapshot(self) -> Parts:
        """Copies of what stands for all committed positions together."""
        return tuple(layer.snapshot() for layer in self.layers)

    def load(self, length: int, pieces: Sequence[tuple[int, Parts]], snapshot: Parts | None) -> None:
        """Become a state of `length` positions, from (start, cells) pieces and the snapshot taken at that length.

        Pieces need not cover what the state holds already; None for a snapshot is right for models of cells only.
        """
        self.reserve(length)
        for start, cells in pieces:
            for layer, own in zip(self.layers, cells, strict=True):
                layer.put_cells(own, start)
        if snapshot is not None:
            for layer, own in zip(self.layers, snapshot, strict=True):
                layer.restore(own)
        self.length = length

    def free(self) -> None:
        """Forget everything: the state is empty again."""
        self._layers = None
        self.attention = AttentionCells(0, self._config, self._device)
        self.length = self.capacity = self.nbytes = 0
