"""How arguments reach the kernels."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from . import build


def available() -> bool:
    """Whether there are kernels here."""
    return build.native().library is not None


def library() -> ctypes.CDLL:
    """The compiled kernels; ask `available` first."""
    found = build.native().library
    assert found is not None, "there are no native kernels here"
    return found


def address(tensor: Tensor | None) -> ctypes.c_void_p:
    """Where a contiguous tensor's data lies; null for None."""
    if tensor is None:
        return ctypes.c_void_p(None)
    assert tensor.is_contiguous()
    return ctypes.c_void_p(tensor.data_ptr())


def int64(value: int) -> ctypes.c_int64:
    """A size or an index."""
    return ctypes.c_int64(value)


def threads() -> ctypes.c_int:
    """As many threads as torch uses."""
    return ctypes.c_int(torch.get_num_threads())
