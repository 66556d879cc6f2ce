"""The metadata of a GGUF file, read in one go: some fifty times faster than building a reader for its tensors too.

Layout (GGUF specification, versions 2 and 3, little-endian): magic "GGUF", u32 version, u64 number of tensors, u64
number of pairs, then the pairs: a key, a u32 type and a value. A string is a u64 length and UTF-8 bytes; an array is a
u32 type, a u64 length and the values.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import CorruptFileError, NotFoundError, UnsupportedModelError

__all__ = ["read_metadata"]

# GGUF's type numbers to those of `struct`; 8 is a string and 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DEPTH = 8


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys of a GGUF file with their values as plain Python objects (arrays are lists).

    Raises NotFoundError, CorruptFileError (not GGUF, or truncated) or UnsupportedModelError (big-endian, version 1).
    """
    if not path.is_file():
        raise NotFoundError(f"there is no file {path}")
    with path.open("rb") as file:
        if path.stat().st_size < 24 or file.read(4) != b"GGUF":
            raise CorruptFileError(f"{path} is not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return dict(_Cursor(data).pairs())
            except (struct.error, UnicodeDecodeError, _Fault) as error:
                raise CorruptFileError(f"{path} is truncated or damaged: {error}") from None


class _Fault(Exception):
    pass


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def pairs(self) -> Iterator[tuple[str, Any]]:
        version = self._scalar("I")
        if version not in (2, 3):
            raise UnsupportedModelError(f"GGUF version {version} is not supported (or big-endian); known ones: 2, 3")
        self._scalar("Q")  # the number of tensors
        for _ in range(self._scalar("Q")):
            yield self._string(), self._value(self._scalar("I"), 0)

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _room(self, count: int, each: int) -> None:
        """A damaged length must not make us ask for memory that the file can't fill."""
        if count * each > len(self._data) - self._at:
            raise _Fault(f"it ends before the {count} values at byte {self._at}")

    def _string(self) -> str:
        length = self._scalar("Q")
        self._room(length, 1)
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8")

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY or depth > _MAX_DEPTH:
            raise _Fault(f"unknown value type {kind} at byte {self._at}")
        inner, count = self._scalar("I"), self._scalar("Q")
        if inner in _SCALARS:
            layout = _SCALARS[inner]
            self._room(count, struct.calcsize("<" + layout))
            values = struct.unpack_from(f"<{count}{layout}", self._data, self._at)
            self._at += struct.calcsize(f"<{count}{layout}")
            return list(values)
        self._room(count, 8)
        return [self._value(inner, depth + 1) for _ in range(count)]
