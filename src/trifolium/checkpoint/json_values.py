"""Values of a parsed config.json, checked one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import CorruptFileError


def count(values: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """The positive integer under `key`, or CorruptFileError."""
    value = values.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CorruptFileError(f"{where}: {key} is {value!r}, expected a positive integer")
    return value


def number(values: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    """The finite number under `key`, or CorruptFileError."""
    value = values.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise CorruptFileError(f"{where}: {key} is {value!r}, expected a number")
    return float(value)
