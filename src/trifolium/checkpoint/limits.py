"""Bounds on what a file may claim, checked before anything of that size is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import ModelConfig
from ..errors import ConfigError, CorruptFileError

MAX_LAYERS = 4096
MAX_JSON_BYTES = 64 << 20


def check_layers(count: int, where: str) -> int:
    """`count`, or CorruptFileError when no real model has so many layers (tables are built per layer)."""
    if count > MAX_LAYERS:
        raise CorruptFileError(f"{where}: {count:,} layers are claimed; at most {MAX_LAYERS:,} are believed")
    return count


def model_config(values: Mapping[str, Any], where: str) -> ModelConfig:
    """The ModelConfig of these values. What a file says is never the caller's fault: CorruptFileError."""
    try:
        return ModelConfig.parse(values, where)
    except ConfigError as error:
        raise CorruptFileError(str(error)) from None
