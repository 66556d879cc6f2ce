"""A pass of a dense transformer in one call: every layer, for commit and preview rows of any number of requests.

Letters: A layers, N rows, D hidden size, K key heads, d head size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .calls import address, int64, library, threads
from .packed import PackedWeight
from .structs import Cells, Delta, Layer, Model, Pass


@dataclass(frozen=True)
class LowRankWeights:
    """y += scale * (x down^T) up^T on preview rows."""

    down: PackedWeight
    up: PackedWeight
    scale: float


@dataclass(frozen=True)
class DenseLayer:
    """One layer's weights. Norms are the factors themselves, float32; those of heads [d] may be missing."""

    mixer_norm: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    ffn_norm: Tensor
    products: Sequence[PackedWeight]
    """qkv, out, gate_up, down."""
    deltas: Sequence[LowRankWeights | None]
    """In the same order."""


@dataclass(frozen=True)
class DenseSizes:
    """The numbers of a dense transformer; `rotary`: how many values of a head are turned."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    ffn: int
    eps: float


class DenseTransformer:
    """All layers and the final norm. Keeps the weights that its structs point to."""

    NAMES = ("qkv", "out", "gate_up", "down")

    def __init__(self, sizes: DenseSizes, layers: Sequence[DenseLayer], final_norm: Tensor) -> None:
        self.sizes = sizes
        self._kept = (tuple(layers), final_norm)
        structs = (Layer * len(layers))()
        for struct, layer in zip(structs, layers, strict=True):
            for name in ("mixer_norm", "q_norm", "k_norm", "ffn_norm"):
                setattr(struct, name, address(getattr(layer, name)))
            for name, product, delta in zip(self.NAMES, layer.products, layer.deltas, strict=True):
                setattr(struct, name, product.product)
                if delta is not None:
                    setattr(struct, f"{name}_delta", Delta(delta.down.product, delta.up.product, delta.scale))
        s = sizes
        self._model = Model(
            len(layers), s.hidden, s.heads, s.kv_heads, s.head_dim, s.rotary, s.ffn, s.eps, structs, address(final_norm)
        )
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def run(
        self,
        x_ND: Tensor,
        commit: int,
        angles: tuple[Tensor, Tensor],
        request_N: Tensor,
        tail_starts: Tensor,
        tails: Tensor,
        cells: Sequence[tuple[Tensor, int]],
        longest: int,
    ) -> Tensor:
        """Final hidden vectors, normalised, into x; returns all rows' keys and values [A, 2, N, K, d].

        `commit` rows come first, then previews. `angles`: cos, sin [N, rotary / 2]. Row i sees the committed positions
        of its request (`request_N` indexes `cells`, pairs of [A, 2, K, capacity, d] and a length), then the rows
        tails[tail_starts[i] : tail_starts[i + 1]] of this pass, in that order; itself included. `longest`: the most
        positions that a row sees.
        """
        n, s = len(x_ND), self.sizes
        assert x_ND.is_contiguous() and x_ND.dtype == torch.float32
        assert request_N.dtype == tail_starts.dtype == torch.int64 and tails.dtype == torch.int32
        lib, team = library(), threads()
        need = lib.trifolium_workspace(ctypes.byref(self._model), int64(n), int64(longest), team)
        if need > self._workspace.nbytes:
            self._workspace = torch.empty(need + need // 4, dtype=torch.uint8)
        scratch = x_ND.new_empty(self._model.layers, 2, n, s.kv_heads, s.head_dim)
        places = (Cells * len(cells))(
            *(Cells(data.data_ptr(), data.shape[3], length) for data, length in cells),
        )
        cos, sin = (angle.contiguous() for angle in angles)
        pass_ = Pass(
            n, commit, address(request_N), address(tail_starts), address(tails), address(cos), address(sin), places,
            address(x_ND), address(scratch), address(self._workspace),
        )  # fmt: skip
        lib.trifolium_dense(ctypes.byref(self._model), ctypes.byref(pass_), int64(longest), team)
        return scratch


def accept_rows(cells: Tensor, scratch: Tensor, path: Sequence[int], length: int) -> None:
    """Put the keys and values of these rows of a pass into the cells [A, 2, K, capacity, d] from `length` on.

    `scratch` [A, 2, n, K, d] may be a part of a pass's.
    """
    layers, _, rows, kv_heads, head_dim = scratch.shape
    assert scratch.stride()[2:] == (kv_heads * head_dim, head_dim, 1)
    index = torch.tensor(list(path), dtype=torch.int64)
    assert length + len(index) <= cells.shape[3] and int(index.max()) < rows
    library().trifolium_accept(
        address(cells), int64(cells.shape[3]), ctypes.c_void_p(scratch.data_ptr()),
        int64(scratch.stride(1)), int64(layers * 2), int64(kv_heads),
        int64(head_dim), address(index), int64(len(index)), int64(length),
    )  # fmt: skip
