"""Adapters on disk: what training adds to a base so that it previews, and the check that it is that base."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch

from ..config import AdapterConfig, ModelConfig
from ..errors import AdapterMismatchError
from .config_file import ConfigFile

METADATA_KEY = "trifolium_adapter"

_FILE = ConfigFile(METADATA_KEY, "adapter", "an ", AdapterConfig)


class Base(Protocol):
    """What an adapter is checked against; a Checkpoint is one."""

    name: str
    config: ModelConfig

    def fingerprint(self) -> str: ...

    def base_fingerprint(self) -> str: ...


def save_adapter(path: Path, config: AdapterConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `tensors` as bfloat16 with `config` to `path`, whole or not at all (an old file survives a failure).

    Raises OSError when the disk is full or the folder can't be written.
    """
    _FILE.save(path, config, tensors)


def load_adapter(path: Path) -> tuple[AdapterConfig, dict[str, torch.Tensor]]:
    """Read (config, tensors as stored, bfloat16) from `path`.

    Raises NotFoundError, CorruptFileError (damaged, or not an adapter) and UnsupportedModelError (another format).
    """
    return _FILE.load(path)


def read_adapter_config(path: Path) -> AdapterConfig:
    """Only the config of an adapter file; errors as in `load_adapter`."""
    return _FILE.read_config(path)


def check_base(config: AdapterConfig, base: Base) -> None:
    """Raises AdapterMismatchError unless the adapter was made for these weights, or for them without skills.

    Skills are small changes of a base, and drafts are only proposals: those of the plain base's adapter still serve. An
    adapter that was trained with skills fits only with them.
    """
    sizes = {"vocab_size", "hidden_size", "num_layers"}
    wrong = [
        f"{key} {getattr(config, key)} against {getattr(base.config, key)}"
        for key in sorted(sizes)
        if getattr(config, key) != getattr(base.config, key)
    ]
    if wrong or config.base_fingerprint not in (base.fingerprint(), base.base_fingerprint()):
        detail = f" ({'; '.join(wrong)})" if wrong else " (same sizes, other weights, or other skills)"
        raise AdapterMismatchError(
            f"the adapter was made for {config.base_name}, not for {base.name}{detail}; "
            "give the adapter of this model, or none (--adapter none)"
        )
