"""What adapters and skills are on disk: one safetensors file of half-precision tensors, with a config as JSON.

Such files are written whole or not at all. `key` is the metadata entry that holds the config, and says what a file is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..config import Frozen
from ..errors import ConfigError, CorruptFileError, NotFoundError, UnsupportedModelError
from ..files import replacing

Config = TypeVar("Config", bound=Frozen)


@dataclass(frozen=True)
class ConfigFile(Generic[Config]):
    """A kind of file. `noun`, `article`: its name in messages."""

    key: str
    noun: str
    article: str
    config: type[Config]

    def save(
        self, path: Path, config: Config, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """Write `tensors` as `dtype` with `config` to `path`, whole or not at all (an old file survives a failure).

        Raises OSError when the disk is full or the folder can't be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = {name: tensor.detach().cpu().to(dtype, copy=True).contiguous() for name, tensor in tensors.items()}
        with replacing(path) as partial:
            save_file(stored, partial, metadata={self.key: config.model_dump_json()})

    def load(self, path: Path) -> tuple[Config, dict[str, torch.Tensor]]:
        """Read (config, tensors as stored) from `path`.

        Raises NotFoundError, CorruptFileError (damaged, or another kind) and UnsupportedModelError (another format).
        """
        with self._opened(path) as file:
            config = self._parse(path, (file.metadata() or {}).get(self.key))
            # Cloned, so that replacing the file later doesn't reach into tensors that are mapped from it.
            return config, {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - not a dict

    def read_config(self, path: Path) -> Config:
        """Only the config of a file; errors as in `load`."""
        with self._opened(path) as file:
            return self._parse(path, (file.metadata() or {}).get(self.key))

    @contextmanager
    def _opened(self, path: Path) -> Iterator[Any]:
        if not path.is_file():
            raise NotFoundError(f"no such {self.noun} file: {path}")
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except (SafetensorError, OSError) as error:
            raise CorruptFileError(f"{path} is damaged, incomplete or no safetensors file: {error}") from None

    def _parse(self, path: Path, text: str | None) -> Config:
        if text is None:
            raise CorruptFileError(
                f"{path} is a safetensors file, but not {self.article}{self.noun}: it has no {self.key} metadata"
            )
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise CorruptFileError(f"{path}: the {self.key} metadata is no JSON object")
        if values.get("format") != 1:
            raise UnsupportedModelError(
                f"{path} has {self.noun} format {values.get('format')!r}; this version reads format 1. Update trifolium"
            )
        try:
            return self.config.parse(values, str(path))
        except ConfigError as error:
            raise CorruptFileError(str(error)) from None
