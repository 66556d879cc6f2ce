"""Open any checkpoint that Trifolium reads, and stream its tensors in our names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from ..config import ModelConfig
from ..errors import NotFoundError
from . import names
from .gguf import GgufReader

if TYPE_CHECKING:
    from ..text import Tokenizer


class Reader(Protocol):
    """What a format gives: the config, the shapes under its own names, and parts read into place."""

    path: Path
    config: ModelConfig
    shapes: dict[str, names.Shape]

    @property
    def ignored(self) -> frozenset[str]: ...

    def read(self, source: names.Source, out: torch.Tensor) -> None: ...


class Checkpoint:
    """A model on disk: its config and its tensors, all of them checked against each other when it is opened."""

    def __init__(self, name: str, format: Literal["safetensors", "gguf"], reader: Reader, licence: str | None) -> None:
        self.name = name
        self.path = reader.path
        self.format = format
        self.config = reader.config
        self.licence = licence
        self._reader = reader
        self._targets = list(names.targets(self.config, "hf" if format == "safetensors" else "gguf"))
        wanted = ((source.name, source.shape) for target in self._targets for source in target.sources)
        names.check_shapes(wanted, reader.shapes, str(self.path), ignored=reader.ignored)

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """(our name, tensor of `dtype`) of every tensor, each read when it is asked for."""
        for target in self._targets:
            yield names.join(target, dtype, self._reader.read)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer and chat template that came with the weights."""
        from ..text import Tokenizer

        return Tokenizer.from_gguf(self.path) if self.format == "gguf" else Tokenizer.from_hf(self.path)

    def fingerprint(self) -> str:
        """sha256 (hex) over the sizes and every norm weight as bfloat16, in name order.

        Norms are never quantised, so a GGUF file and the safetensors it was made from have one fingerprint. Numbers
        that a format rounds (epsilon, rope) stay out of it.
        """
        config = self.config
        digest = hashlib.sha256()
        for key in _IDENTITY:
            digest.update(f"{key}={getattr(config, key)}\n".encode())
        for target in sorted(self._targets, key=lambda target: target.name):
            if target.name.endswith("norm.weight"):
                _, tensor = names.join(target, torch.bfloat16, self._reader.read)
                digest.update(target.name.encode() + b"\n")
                digest.update(tensor.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


_IDENTITY = (
    "family",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "tie_embeddings",
    "qkv_bias",
    "out_bias",
    "mlp_bias",
    "qk_norm",
)


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open a `.gguf` file. Raises NotFoundError, or a CheckpointError that says what is wrong with it."""
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        reader = GgufReader(path)
        licence = reader.metadata.get("general.license")
        name = reader.metadata.get("general.name")
        return Checkpoint(str(name or path.stem), "gguf", reader, licence if isinstance(licence, str) else None)
    raise NotFoundError(f"{source}: not a GGUF file")
