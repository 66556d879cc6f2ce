"""Reading safetensors without a copy: bytes go from the file straight into the tensor they are meant for.

The library maps the whole file, so what was read stays in the process's memory beside the model until the file is
closed. Here at most CHUNK_BYTES are held besides the tensor that is filled, and only where the dtype is converted.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open

from ..errors import CorruptFileError
from ..files import replacing

CHUNK_BYTES = 4 << 20
FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
DTYPES = {**FLOATS, "I8": torch.int8, "U8": torch.uint8}
ALIGN = 64
"""Bytes of a cache line, to which `write` aligns the data."""

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
        size, header = _header(path)
        header.pop("__metadata__", None)
        for name, tensor in header.items():
            yield Stored(path, name, tensor["dtype"], tuple(tensor["shape"]), 8 + size + tensor["data_offsets"][0])


def metadata(path: Path) -> dict[str, str]:
    """The strings that a file carries beside its tensors. Raises CorruptFileError."""
    with _reading(path, *_MALFORMED):
        return dict(_header(path)[1].get("__metadata__", {}))


def mapped(stored: Stored) -> torch.Tensor:
    """The tensor without reading it: its pages come from the file when they are touched, and stay the system's to drop.

    Writing to it changes private copies of pages, never the file. The file must not be cut short while the tensor
    lives; replacing or removing it does no harm. Raises CorruptFileError.
    """
    dtype = DTYPES[stored.dtype]
    count = prod(stored.shape)
    if not count:
        return torch.empty(stored.shape, dtype=dtype)
    before = stored.start % mmap.ALLOCATIONGRANULARITY
    with _reading(stored.path, ValueError), stored.path.open("rb") as file:
        if stored.start % dtype.itemsize:
            raise ValueError(f"{stored.name} is not aligned")
        size = before + count * dtype.itemsize
        memory = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY, offset=stored.start - before)
        return torch.frombuffer(memory, dtype=dtype, count=count, offset=before).view(stored.shape)


def write(
    path: Path,
    layout: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    tensors: Iterable[tuple[str, torch.Tensor]],
    about: Mapping[str, str],
) -> None:
    """Write (name, tensor) pairs that come in any order, one in memory at a time; whole, or not at all.

    `layout`: dtype and shape of every tensor that will come. `about`: the file's metadata. Raises OSError when the disk
    is full or the folder can't be written, and ValueError when the tensors are not those of the layout.
    """
    codes = {dtype: code for code, dtype in DTYPES.items()}
    starts: dict[str, int] = {}
    header: dict[str, Any] = {"__metadata__": dict(about)}
    end = 0
    # Wide numbers first, and odd sizes last: the format allows no gaps, so that this is what keeps tensors aligned.
    bytes_of = {name: dtype.itemsize * prod(shape) for name, (dtype, shape) in layout.items()}
    for name in sorted(layout, key=lambda name: (-layout[name][0].itemsize, bytes_of[name] % ALIGN != 0)):
        dtype, shape = layout[name]
        starts[name], end = end, end + bytes_of[name]
        header[name] = {"dtype": codes[dtype], "shape": list(shape), "data_offsets": [starts[name], end]}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors:
            if layout.get(name) != (tensor.dtype, tuple(tensor.shape)) or name not in starts:
                raise ValueError(f"{name} is not the tensor that was announced")
            file.seek(8 + len(text) + starts.pop(name))
            file.write(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
        if starts:
            raise ValueError(f"tensors that were announced didn't come: {', '.join(list(starts)[:8])}")


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


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    """(bytes of the header, the header)."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        return size, json.loads(file.read(size))


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
