"""A strict reader of the GGUF header: every count, length and offset is checked against the file before it is used.

The header of a downloaded file is hostile until proven otherwise. A length is never allocated before the file is
known to hold that many bytes, so reading takes time and memory in proportion to what is really there.
Layout: the GGUF specification in ggml's docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ..errors import CorruptFileError, NotFoundError, UnsupportedModelError

_MAGIC = b"GGUF"
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 20
_MIN_PAIR_BYTES = 8 + 4 + 1  # an empty key, a type, one byte of value
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8  # an empty name, no dimensions, a type, an offset


@dataclass(frozen=True)
class GgufTensor:
    """Where one tensor lies. `shape` is in torch order (rows first); `offset` is from the start of the file."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata (numbers, strings, lists of strings, numpy arrays of numbers) and the tensors' places."""

    path: Path
    size: int
    metadata: dict[str, Any] = field(repr=False)
    tensors: dict[str, GgufTensor] = field(repr=False)

    def plain_metadata(self) -> dict[str, Any]:
        """The metadata as plain Python values, which a tokenizer is made from."""
        return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in self.metadata.items()}


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of the GGUF file at `path`.

    Raises NotFoundError (no such file), CorruptFileError (damaged, truncated, or not GGUF) and UnsupportedModelError
    (a version, byte order, tensor type or split file that is not supported).
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise CorruptFileError(f"{path} is not a GGUF file: it does not start with 'GGUF'")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Cursor(path, data, size).header()
    except FileNotFoundError:
        raise NotFoundError(f"no such file: {path}") from None
    except OSError as error:
        raise CorruptFileError(f"{path} can't be read: {error}") from None


class _Cursor:
    """Walks the mapped file; every read is checked against its end."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path, self.data, self.size, self.at = path, data, size, 4

    def header(self) -> GgufHeader:
        version = self.number("<I")
        if version not in (2, 3):
            other_order = version & 0xFFFF == 0 and version != 0
            what = "is big endian" if other_order else f"has GGUF version {version}"
            raise UnsupportedModelError(f"{self.path} {what}; only little-endian GGUF 2 and 3 can be read")
        tensor_count, pair_count = self.number("<Q"), self.number("<Q")
        self.check_count(pair_count, _MIN_PAIR_BYTES, "metadata entries")
        self.check_count(tensor_count, _MIN_TENSOR_BYTES, "tensors")
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = self.string("a metadata key")
            if key in metadata:
                self.corrupt(f"the metadata key {key!r} appears twice")
            metadata[key] = self.value(self.number("<I"), key)
        if isinstance(parts := metadata.get("split.count"), int) and parts > 1:
            raise UnsupportedModelError(
                f"{self.path} is one of {parts} parts of a split model; merge them first (llama-gguf-split --merge)"
            )
        infos = [self.tensor_info() for _ in range(tensor_count)]
        return GgufHeader(self.path, self.size, metadata, self.place(infos, metadata))

    def place(
        self, infos: list[tuple[str, tuple[int, ...], int, int]], metadata: dict[str, Any]
    ) -> dict[str, GgufTensor]:
        """Turn offsets into places in the file, and check that each tensor's bytes are there."""
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            self.corrupt(f"general.alignment is {alignment!r}, which is not a power of two")
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, kind_id, offset in infos:
            try:
                kind = GGMLQuantizationType(kind_id)
            except ValueError:
                raise UnsupportedModelError(
                    f"{self.path}: tensor {name} has the unknown type {kind_id}; a newer gguf package may know it"
                ) from None
            block, block_bytes = GGML_QUANT_SIZES[kind]
            if shape[-1] % block:
                self.corrupt(f"tensor {name} has rows of {shape[-1]}, which {kind.name} can't hold")
            if name in tensors:
                self.corrupt(f"tensor {name} appears twice")
            nbytes = prod(shape) // block * block_bytes
            if offset % alignment or start + offset + nbytes > self.size:
                self.corrupt(
                    f"tensor {name} should end at byte {start + offset + nbytes:,} of {self.size:,}"
                    if offset % alignment == 0
                    else f"tensor {name} is not aligned"
                )
            tensors[name] = GgufTensor(name, shape, kind, start + offset, nbytes)
        return tensors

    def tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        """(name, shape in torch order, type id, offset from the data's start)."""
        name = self.string("a tensor name")
        dims = self.number("<I")
        if not 0 < dims <= _MAX_DIMS:
            self.corrupt(f"tensor {name!r} has {dims} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dims))[::-1]
        if not all(shape):
            self.corrupt(f"tensor {name!r} has the shape {list(shape)}")
        return name, shape, self.number("<I"), self.number("<Q")

    def value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string(key)
        if kind == _ARRAY:
            item, count = self.number("<I"), self.number("<Q")
            if item == _STRING:
                return self.strings(count, key)
            return np.frombuffer(self.take(self.width(item, key) * count, key), dtype=_SCALARS[item])
        return np.frombuffer(self.take(self.width(kind, key), key), dtype=_SCALARS[kind])[0].item()

    def width(self, kind: int, key: str) -> int:
        if kind not in _SCALARS:
            self.corrupt(f"{key} has the unknown type {kind}")
        return np.dtype(_SCALARS[kind]).itemsize

    def string(self, what: str) -> str:
        raw = self.take(self.number("<Q"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.corrupt(f"{what} is not UTF-8")

    def strings(self, count: int, key: str) -> list[str]:
        """`count` strings; vocabularies have 100,000 and more, so that each costs as little as can be."""
        self.check_count(count, 8, f"strings in {key}")
        data, size, at, length_at = self.data, self.size, self.at, struct.Struct("<Q").unpack_from
        found = []
        try:
            for _ in range(count):
                (length,) = length_at(data, at)
                at += 8 + length
                if at > size:
                    self.corrupt(f"{key} needs {length:,} bytes at {at - length:,}, but the file ends at {size:,}")
                found.append(str(data[at - length : at], "utf-8"))
        except UnicodeDecodeError:
            self.corrupt(f"{key} is not UTF-8")
        except struct.error:
            self.corrupt(f"{key} ends within the {len(found) + 1:,}th of {count:,} strings")
        self.at = at
        return found

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form), "the header"))[0])

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.at:
            self.corrupt(f"{what} needs {count:,} bytes at {self.at:,}, but the file ends at {self.size:,}")
        self.at += count
        return self.data[self.at - count : self.at]

    def check_count(self, count: int, each: int, what: str) -> None:
        if count > (self.size - self.at) // each:
            self.corrupt(f"it claims {count:,} {what}, more than {self.size:,} bytes can hold")

    def corrupt(self, fault: str) -> NoReturn:
        raise CorruptFileError(f"{self.path} is damaged or incomplete: {fault}; fetch it again")
