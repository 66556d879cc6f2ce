"""Fast linear kernels. Each holds its own packed weight; calls take float32 rows [N, I] and give float32 [N, O].

`num_commit` tells how many leading rows must be exact, that is, must not depend on the other rows of the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from .. import native
from ..formats import INT4, QUANTISED
from ..native.packed import PackedWeight
from .quantised import Groups, QuantisedWeight, quantise, quantise_groups

Weight = Tensor | QuantisedWeight | Groups

ALIGN = 16
"""Floats of one cache line."""


class LinearKernel(Protocol):
    """One packed weight [O, I]."""

    exact: bool
    """Whether a commit row's output is the same bits in any pass."""
    tiled: bool
    """Whether exactness needs commit rows in whole tiles."""

    def __call__(self, x_NI: Tensor, num_commit: int, tile: int | None) -> Tensor:
        """Rows [N, I] -> [N, O]. `tile`: width of exact products; None means one product is exact as it is."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        ...


class PackedLinear:
    """Products by the native kernels, exact in every dtype: no sum depends on another row."""

    exact = True
    tiled = False

    def __init__(self, weight_OI: Weight, bias_O: Tensor | None, dtype: torch.dtype) -> None:
        self.packed = pack_weight(weight_OI, bias_O, dtype)

    def __call__(self, x_NI: Tensor, num_commit: int, tile: int | None) -> Tensor:
        return self.packed(x_NI)

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes


def pack_weight(weight_OI: Weight, bias_O: Tensor | None, dtype: torch.dtype) -> PackedWeight:
    """A weight in float32, bfloat16, int8 or int4 for the native kernels. One that is quantised stays as it is."""
    inputs = weight_OI.shape[1]
    if isinstance(weight_OI, Tensor) and dtype in QUANTISED:
        weight_OI = quantise(weight_OI) if dtype == torch.int8 else quantise_groups(weight_OI)
    if isinstance(weight_OI, QuantisedWeight):
        return PackedWeight(weight_OI.values, (weight_OI.scale,), inputs, torch.int8, bias_O)
    if isinstance(weight_OI, Groups):
        return PackedWeight(weight_OI.values, (weight_OI.step, weight_OI.least), inputs, INT4, bias_O)
    return PackedWeight(weight_OI, (), inputs, dtype, bias_O)


class FloatLinear:
    """Products in float32 or bfloat16 by torch.

    float32 commit rows run in tiles of a fixed height, so that each sees one GEMM shape, padded to whole cache lines,
    since matrix libraries may round a row by how its start is aligned.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, dtype: torch.dtype) -> None:
        self.exact = self.tiled = dtype == torch.float32
        self.padding = -weight_OI.shape[1] % ALIGN if self.tiled else 0
        weight = weight_OI.to(dtype).contiguous()
        self.weight = F.pad(weight, (0, self.padding)) if self.padding else weight
        self.bias = None if bias_O is None else bias_O.to(dtype)

    def __call__(self, x_NI: Tensor, num_commit: int, tile: int | None) -> Tensor:
        x = x_NI.to(self.weight.dtype)
        if self.padding:
            x = F.pad(x, (0, self.padding))
        if tile is None or num_commit == 0 or (len(x) == num_commit == tile):
            return F.linear(x, self.weight, self.bias).float()
        heights = [tile] * (num_commit // tile) + [r for r in (num_commit % tile, len(x) - num_commit) if r]
        whole = self._whole(torch.split(x, heights), num_commit, tile)
        parts = [F.linear(part, self.weight, self.bias) for part in whole]
        if num_commit % tile:
            parts[num_commit // tile] = parts[num_commit // tile][: num_commit % tile]
        return torch.cat(parts).float()

    @staticmethod
    def _whole(parts: Sequence[Tensor], num_commit: int, tile: int) -> list[Tensor]:
        """The parts, of which the last tile of commit rows is filled up with zeros if it isn't whole."""
        last = num_commit // tile
        return [
            F.pad(part, (0, 0, 0, tile - len(part))) if i == last and num_commit % tile else part
            for i, part in enumerate(parts)
        ]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


def has_int8_dot_products() -> bool:
    """Whether this CPU sums int8 products in 32 bits (VNNI or AMX). Else, AVX2 sums pairs in saturating 16 bits."""
    return torch.cpu._is_vnni_supported() or torch.cpu._is_amx_tile_supported()


_TINY = torch.finfo(torch.float32).tiny


class Int8Linear:
    """int8 x int8 products through oneDNN: exact integer sums, so no row can depend on another.

    Weights are symmetric per output channel, activations per row. Where the CPU would sum pairs of products in
    saturating 16-bit lanes, activations use 7 bits: 2 * 127 * 127 < 2^15 can't saturate.
    """

    exact = True
    tiled = False

    def __init__(self, weight_OI: Tensor | QuantisedWeight, bias_O: Tensor | None) -> None:
        weight = weight_OI if isinstance(weight_OI, QuantisedWeight) else quantise(weight_OI)
        q, self.scale = weight.values, weight.scale
        self.limit, self.zero = (127, 128) if has_int8_dot_products() else (63, 64)
        self.bias = bias_O
        self.packed = torch.ops.onednn.qlinear_prepack(q, None)
        self.no_zero_points = torch.zeros(len(q), dtype=torch.int32)
        self.size = q.nbytes

    def __call__(self, x_NI: Tensor, num_commit: int, tile: int | None) -> Tensor:
        q, scale = self._quantise(x_NI)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            q, 1.0, self.zero, self.packed, self.scale, self.no_zero_points,
            None, 1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        y.mul_(scale[:, None])
        return y if self.bias is None else y.add_(self.bias)

    def _quantise(self, x_NI: Tensor) -> tuple[Tensor, Tensor]:
        """quantise_rows with the zero point added, in as few passes over the rows as torch allows.

        A row that isn't finite gets scale NaN: whatever its integers are, its products are NaN.
        """
        scale = torch.linalg.vector_norm(x_NI, torch.inf, dim=-1).div_(self.limit)
        scale.masked_fill_(scale < _TINY, 0.0).masked_fill_(scale.isinf(), torch.nan)
        inverse = torch.where(scale > 0, 1.0 / scale, 0.0)
        return (x_NI * inverse[:, None]).round_().add_(self.zero).to(torch.uint8), scale

    @property
    def nbytes(self) -> int:
        return self.size


def linear_kernel(weight_OI: Weight, bias_O: Tensor | None, dtype: torch.dtype) -> LinearKernel:
    """The kernel of a weight in float32, bfloat16, int8 or int4: the native one where there is a compiler.

    Without one, int4 keeps its values and computes in float32.
    """
    if native.available() and weight_OI.device.type == "cpu":
        return PackedLinear(weight_OI, bias_O, dtype)
    if dtype == INT4 and isinstance(weight_OI, Tensor):
        weight_OI = quantise_groups(weight_OI)
    if isinstance(weight_OI, Groups):
        return FloatLinear(weight_OI.dequantise(), bias_O, torch.float32)
    if isinstance(weight_OI, QuantisedWeight) or dtype == torch.int8:
        return Int8Linear(weight_OI, bias_O)
    return FloatLinear(weight_OI, bias_O, dtype)
