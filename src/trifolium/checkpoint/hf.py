"""Weights from a HF folder: safetensors, one file or sharded with an index. Pickles are refused."""

from __future__ import annotations

from pathlib import Path

import torch

from ..config import ModelConfig
from ..errors import CorruptFileError, NotFoundError, TensorMismatchError, UnsupportedModelError
from .hf_config import config_from_hf, read_json
from .names import Shape, Source
from .safetensors_file import FLOATS, Stored, contents, equal, read_into
from .tables import HYBRIDS, SKIPPED, WRAPPED

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_EMBED, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


class HfReader:
    """One HF folder. Attributes: `path`, `files`, `config`, `shapes` (HF names -> shapes).

    Names are those of the text model's own class, whatever prefix the file has.

    Raises NotFoundError, CorruptFileError and UnsupportedModelError when it is opened.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        shards = weight_files(folder)
        self.files: tuple[Path, ...] = (folder / CONFIG, *shards)
        self.config: ModelConfig = config_from_hf(read_json(folder / CONFIG), str(folder / CONFIG))
        self.shapes: dict[str, Shape] = {}
        self._stored: dict[str, Stored] = {}
        for stored in (stored for shard in shards for stored in contents(shard)):
            if (name := self._name(stored.name)) is None:
                continue
            if name in self._stored:
                raise CorruptFileError(f"{folder}: {name} is in both {_places(self._stored[name], stored)}")
            if stored.dtype not in FLOATS and not _harmless(name):
                raise UnsupportedModelError(
                    f"{stored.path}: {name} is {stored.dtype}; quantised safetensors are not supported, "
                    "take the original weights or a GGUF file"
                )
            self.shapes[name], self._stored[name] = stored.shape, stored
        self.ignored = frozenset(name for name in self.shapes if _harmless(name)) | (
            {_HEAD} if self.config.tie_embeddings else frozenset()
        )

    def read(self, source: Source, out: torch.Tensor) -> None:
        """Fill `out` (contiguous) with `source`, converting to its dtype."""
        stored = self._stored[source.name]
        if (
            source.name == _EMBED
            and self.config.tie_embeddings
            and _HEAD in self._stored
            and not equal(stored, self._stored[_HEAD])
        ):
            raise TensorMismatchError(
                f"{self.path}: {_HEAD} differs from {_EMBED}, but the embeddings are tied; "
                "set tie_word_embeddings to false in config.json if the head is meant to be used"
            )
        read_into(stored, out)

    def dtype(self, name: str) -> torch.dtype:
        """What a tensor is stored in."""
        return FLOATS[self._stored[name].dtype]

    def _name(self, stored: str) -> str | None:
        """The name that the tables know a stored tensor by; None for those that no text is made with."""
        if self.config.family not in HYBRIDS:
            return stored
        if stored.startswith(SKIPPED):
            return None
        return "model." + stored.removeprefix(WRAPPED) if stored.startswith(WRAPPED) else stored


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


def _places(first: Stored, second: Stored) -> str:
    if first.path == second.path:
        return f"{first.name} and {second.name} of {first.path.name}"
    return f"{first.path.name} and {second.path.name}"
