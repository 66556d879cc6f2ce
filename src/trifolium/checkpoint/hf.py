"""Weights from a HF folder: safetensors, one file or sharded with an index. Pickles are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..config import ModelConfig
from ..errors import CorruptFileError, NotFoundError, TensorMismatchError, UnsupportedModelError
from .hf_config import config_from_hf, read_json
from .names import Shape, Source

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_FLOATS = {"F64", "F32", "F16", "BF16"}


class HfReader:
    """One HF folder. Attributes: `path`, `config`, `shapes` (HF names -> shapes).

    Raises NotFoundError, CorruptFileError and UnsupportedModelError when it is opened.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        shards = weight_files(folder)
        self.config: ModelConfig = config_from_hf(read_json(folder / CONFIG), str(folder / CONFIG))
        self.shapes: dict[str, Shape] = {}
        self._shard_of: dict[str, Path] = {}
        for shard in shards:
            for name, shape, dtype in _contents(shard):
                if name in self.shapes:
                    raise CorruptFileError(f"{folder}: {name} is in both {self._shard_of[name].name} and {shard.name}")
                if dtype not in _FLOATS and not _harmless(name):
                    raise UnsupportedModelError(
                        f"{shard}: {name} is {dtype}; quantised safetensors are not supported, "
                        "take the original weights or a GGUF file"
                    )
                self.shapes[name], self._shard_of[name] = shape, shard
        self.ignored = frozenset(name for name in self.shapes if _harmless(name)) | (
            {_HEAD} if self.config.tie_embeddings else frozenset()
        )

    def read(self, source: Source, out: torch.Tensor) -> None:
        """Copy `source` into `out`, converting to its dtype."""
        tensor = self._get(source.name)
        if source.name == _EMBED and self.config.tie_embeddings and _HEAD in self.shapes:
            head = self._get(_HEAD)
            if head.shape != tensor.shape or not torch.equal(head, tensor):
                raise TensorMismatchError(
                    f"{self.path}: {_HEAD} differs from {_EMBED}, but the embeddings are tied; "
                    "set tie_word_embeddings to false in config.json if the head is meant to be used"
                )
        out.copy_(tensor)

    def _get(self, name: str) -> torch.Tensor:
        with _opened(self._shard_of[name]) as file:
            tensor: torch.Tensor = file.get_tensor(name)
        return tensor


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of `folder`, in name order: one, or those that the index lists."""
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX).get("weight_map")
        if not isinstance(index, dict) or not index or not all(isinstance(name, str) for name in index.values()):
            raise CorruptFileError(f"{folder / INDEX} has no weight_map of tensor names to file names")
        files = sorted(set(index.values()))
        for name in files:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise CorruptFileError(f"{folder / INDEX} names {name!r}, which is no safetensors file of its folder")
            if not (folder / name).is_file():
                raise CorruptFileError(f"{folder} is incomplete: {name} is missing; fetch it again")
        return [folder / name for name in files]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    pickles = sorted(path.name for path in folder.iterdir() if is_pickle(path))
    if pickles:
        raise pickle_error(folder, pickles)
    raise NotFoundError(f"{folder} holds no {SINGLE}, no {INDEX} and no .gguf file")


def is_pickle(path: Path) -> bool:
    """Whether the name is one under which pickled weights are published."""
    return path.suffix in _PICKLES


def pickle_error(where: Path, names: list[str]) -> CorruptFileError:
    """The refusal of pickled weights."""
    return CorruptFileError(
        f"{where} holds only pickled weights ({', '.join(names)}). Loading a pickle can run any code, so it is "
        "refused; take the safetensors or GGUF version of this model"
    )


def _harmless(name: str) -> bool:
    """Buffers that old versions of transformers saved, and that the config determines."""
    return name.endswith("rotary_emb.inv_freq")


def _contents(path: Path) -> Iterator[tuple[str, Shape, str]]:
    """(name, shape, dtype) of every tensor, from the header alone."""
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - not a dict
            view = file.get_slice(name)
            yield name, tuple(view.get_shape()), view.get_dtype()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CorruptFileError(f"{path} is damaged or incomplete: {error}; fetch it again") from None
