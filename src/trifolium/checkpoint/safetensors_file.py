"""Reading safetensors without a copy: bytes go from the file straight into the tensor they are meant for.

The library maps the whole file, so what was read stays in the process's memory beside the model until the file is
closed. Here at most CHUNK_BYTES are held besides the tensor that is filled, and only where the dtype is converted.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import torch
from safetensors import SafetensorError, safe_open

from ..errors import CorruptFileError

CHUNK_BYTES = 4 << 20
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

_MALFORMED = (SafetensorError, struct.error, ValueError, KeyError, TypeError, RecursionError)


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its name and dtype there, its shape, and the byte at which it starts."""

    path: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int


def contents(path: Path) -> Iterator[Stored]:
    """Every tensor of a file, from the header alone. Raises CorruptFileError."""
    with _reading(path, *_MALFORMED):
        # The library checks the header (sizes, gaps, overlaps, the file's length); it doesn't tell the offsets.
        with safe_open(path, framework="pt"):
            pass
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            yield Stored(path, name, tensor["dtype"], tuple(tensor["shape"]), 8 + size + tensor["data_offsets"][0])


def read_into(stored: Stored, out: torch.Tensor) -> None:
    """Fill `out`, contiguous and of the stored shape, converting to its dtype. Raises CorruptFileError."""
    flat = out.view(-1)
    with _reading(stored.path), stored.path.open("rb", buffering=0) as file:
        file.seek(stored.start)
        if FLOATS[stored.dtype] == out.dtype:
            _fill(file, flat)
        else:
            start = 0
            for chunk in _chunks(file, stored):
                flat[start : start + chunk.numel()].copy_(chunk)
                start += chunk.numel()


def equal(a: Stored, b: Stored) -> bool:
    """Whether two tensors have one shape, one dtype and the same values, without holding either."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    with _reading(a.path), a.path.open("rb", buffering=0) as one, b.path.open("rb", buffering=0) as other:
        one.seek(a.start)
        other.seek(b.start)
        return all(torch.equal(x, y) for x, y in zip(_chunks(one, a), _chunks(other, b), strict=True))


def _chunks(file: IO[bytes], stored: Stored) -> Iterator[torch.Tensor]:
    dtype, left = FLOATS[stored.dtype], prod(stored.shape)
    buffer = torch.empty(min(left, CHUNK_BYTES // dtype.itemsize), dtype=dtype)
    while left:
        chunk = buffer[:left]
        _fill(file, chunk)
        yield chunk
        left -= chunk.numel()


def _fill(file: IO[bytes], flat: torch.Tensor) -> None:
    memory = flat.view(torch.uint8).numpy().data
    while memory:
        if not (count := file.readinto(memory)):  # type: ignore[attr-defined]
            raise OSError("it ends within a tensor")
        memory = memory[count:]


@contextmanager
def _reading(path: Path, *faults: type[Exception]) -> Iterator[None]:
    caught: tuple[type[Exception], ...] = (OSError, *faults)
    try:
        yield
    except caught as error:
        raise CorruptFileError(f"{path} is damaged or incomplete: {error}; fetch it again") from None
