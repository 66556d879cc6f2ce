"""Packed weights: what products.h computes with, in four number formats.

Letters: N rows, I inputs, O outputs, G groups of GROUP inputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from ..formats import INT4
from .calls import address, int64, library, threads
from .structs import Product

FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, INT4: 3}


class PackedWeight:
    """A weight [O, I], with an optional bias [O], as the kernels read it.

    A row's products depend on nothing but the row, bit for bit, whatever rows stand beside it.
    """

    def __init__(
        self,
        values: Tensor,
        factors: Sequence[Tensor],
        inputs: int,
        dtype: torch.dtype,
        bias_O: Tensor | None = None,
    ) -> None:
        """`values` in `dtype`: floats [O, I]; int8 [O, I] with factors (scale [O],); int4 as uint8 [O, G * GROUP] with
        factors (step, least), float16 [O, G].
        """
        lib = library()
        self.dtype = dtype
        outputs = len(values)
        kind = ctypes.c_int32(FORMATS[dtype])
        values = (values.float() if dtype in (torch.float32, torch.bfloat16) else values).contiguous()
        first, second = [*(factor.contiguous() for factor in factors), None, None][:2]
        size = lib.trifolium_packed_bytes(kind, int64(inputs), int64(outputs))
        # Whole cache lines, from the start of one on.
        self._room = torch.empty(size + 64, dtype=torch.uint8)
        start = -self._room.data_ptr() % 64
        self._packed = self._room[start : start + size]
        lib.trifolium_pack(
            kind, address(values), address(first), address(second), int64(inputs), int64(outputs),
            address(self._packed), threads(),
        )  # fmt: skip
        self._bias = None if bias_O is None else bias_O.float().contiguous()
        self.product = Product(self._packed.data_ptr(), None, inputs, outputs, kind)
        if self._bias is not None:
            self.product.bias = self._bias.data_ptr()

    def __call__(self, x_NI: Tensor) -> Tensor:
        """float32 rows [N, I] -> x W^T + b [N, O]."""
        x = x_NI.contiguous()
        assert x.dtype == torch.float32 and x.shape[1] == self.product.inputs
        y = x.new_empty(len(x), self.product.outputs)
        library().trifolium_product(ctypes.byref(self.product), address(x), int64(len(x)), address(y), threads())
        return y

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight."""
        return self._packed.nbytes
