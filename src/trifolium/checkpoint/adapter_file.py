"""Adapters on disk: one safetensors file whose metadata carries the AdapterConfig as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..config import AdapterConfig, ModelConfig
from ..errors import AdapterMismatchError, ConfigError, CorruptFileError, NotFoundError, UnsupportedModelError
from ..files import replacing

METADATA_KEY = "trifolium_adapter"


class Base(Protocol):
    """What an adapter is checked against; a Checkpoint is one."""

    name: str
    config: ModelConfig

    def fingerprint(self) -> str: ...


def save_adapter(path: Path, config: AdapterConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `tensors` as bfloat16 with `config` to `path`, whole or not at all (an old file survives a failure).

    Raises OSError when the disk is full or the folder can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {
        name: tensor.detach().cpu().to(torch.bfloat16, copy=True).contiguous() for name, tensor in tensors.items()
    }
    with replacing(path) as partial:
        save_file(stored, partial, metadata={METADATA_KEY: config.model_dump_json()})


def load_adapter(path: Path) -> tuple[AdapterConfig, dict[str, torch.Tensor]]:
    """Read (config, tensors as stored, bfloat16) from `path`.

    Raises NotFoundError, CorruptFileError (damaged, or not an adapter) and UnsupportedModelError (another format).
    """
    with _opened(path) as file:
        config = _parse(path, (file.metadata() or {}).get(METADATA_KEY))
        # Cloned, so that replacing the file later doesn't reach into tensors that are mapped from it.
        return config, {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict


def read_adapter_config(path: Path) -> AdapterConfig:
    """Only the config of an adapter file; errors as in `load_adapter`."""
    with _opened(path) as file:
        return _parse(path, (file.metadata() or {}).get(METADATA_KEY))


def check_base(config: AdapterConfig, base: Base) -> None:
    """Raises AdapterMismatchError unless the adapter was made for these very weights (see Checkpoint.fingerprint)."""
    sizes = {"vocab_size", "hidden_size", "num_layers"}
    wrong = [
        f"{key} {getattr(config, key)} against {getattr(base.config, key)}"
        for key in sorted(sizes)
        if getattr(config, key) != getattr(base.config, key)
    ]
    if wrong or config.base_fingerprint != base.fingerprint():
        detail = f" ({'; '.join(wrong)})" if wrong else " (same sizes, other weights)"
        raise AdapterMismatchError(
            f"the adapter was made for {config.base_name}, not for {base.name}{detail}; "
            "give the adapter of this model, or none (--adapter none)"
        )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise NotFoundError(f"no such adapter file: {path}")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CorruptFileError(f"{path} is damaged, incomplete or no safetensors file: {error}") from None


def _parse(path: Path, text: str | None) -> AdapterConfig:
    if text is None:
        raise CorruptFileError(f"{path} is a safetensors file, but not an adapter: it has no {METADATA_KEY} metadata")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise CorruptFileError(f"{path}: the {METADATA_KEY} metadata is no JSON object")
    if values.get("format") != 1:
        raise UnsupportedModelError(
            f"{path} has adapter format {values.get('format')!r}; this version reads format 1. Update trifolium"
        )
    try:
        return AdapterConfig.parse(values, str(path))
    except ConfigError as error:
        raise CorruptFileError(str(error)) from None
