"""Open any checkpoint that Trifolium reads, and stream its tensors in our names."""

from __future__ import annotations

import copy
import functools
import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from ..config import ModelConfig
from ..errors import CorruptFileError, NotFoundError
from . import hub, names
from .gguf import GgufReader
from .hf import CONFIG, HfReader, is_pickle, pickle_error
from .previews import check_previews
from .shelf import Shelf
from .skills_file import Skills, read_skills
from .tables import PREVIEW

if TYPE_CHECKING:
    from ..text import Tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
)

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
# What only hybrids have enters where it is set, so that it changes no older model's fingerprint.
_HYBRID_IDENTITY = {
    "delta_net": ("key_heads", "value_heads", "key_dim", "value_dim", "conv_width"),
    "experts": ("count", "top_k", "size", "shared_size", "renormalise"),
}
_HYBRID_TENSORS = ("mixer.conv", "mixer.decay_log", "mixer.decay_bias")


class Reader(Protocol):
    """What a format gives: the config, the shapes under its own names, and parts read into place."""

    path: Path
    files: tuple[Path, ...]
    config: ModelConfig
    shapes: dict[str, names.Shape]

    @property
    def ignored(self) -> frozenset[str]: ...

    def dtype(self, name: str) -> torch.dtype: ...

    def read(self, source: names.Source, out: torch.Tensor) -> None: ...


class Checkpoint:
    """A model on disk: its config and its tensors, all of them checked against each other when it is opened.

    `skills`: what is added to its weights whenever they are read, see `with_skills`.
    """

    def __init__(self, name: str, format: Literal["safetensors", "gguf"], reader: Reader, licence: str | None) -> None:
        self.name = name
        self.path = reader.path
        self.format = format
        self.config = reader.config
        self.licence = licence
        self.skills: Skills | None = None
        self._reader = reader
        naming: names.Naming = "hf" if format == "safetensors" else "gguf"
        self._targets = list(names.targets(self.config, naming, reader.shapes))
        if format == "safetensors":
            check_previews(self.config, reader.shapes, str(self.path))
        wanted = ((source.name, source.shape) for target in self._targets for source in target.sources)
        names.check_shapes(wanted, reader.shapes, str(self.path), ignored=reader.ignored)

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that the plain weights and the config come from."""
        return self._reader.files

    def with_skills(self, path: Path) -> Checkpoint:
        """This plain checkpoint with the deltas of a skills file merged into its weights. Errors as in `read_skills`.

        Merged in float32, then rounded to the dtype that the file stores a weight in; those of quantised files stay
        float32. It has a fingerprint of its own.
        """
        assert self.skills is None, "skills are merged into plain weights"
        skilled = copy.copy(self)
        skilled.skills = read_skills(path, self, self.shapes)
        return skilled

    @property
    def four_bit(self) -> bool:
        """Whether the layers' weights lose nothing in int4, since they are stored in such a format.

        With skills they would: a merged weight lies between the steps.
        """
        return self.skills is None and isinstance(self._reader, GgufReader) and self._reader.four_bit

    @property
    def shapes(self) -> dict[str, names.Shape]:
        """Our name -> shape of every tensor of the base model, in the order in which `tensors` gives them."""
        return {target.name: target.shape for target in self._targets if not target.name.startswith(PREVIEW)}

    def tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
        """(our name, tensor of `dtype`) of every tensor of the base model, each read when it is asked for.

        Raises CorruptFileError when a tensor is damaged, or holds a NaN or an infinity.
        """
        for target in self._targets:
            if not target.name.startswith(PREVIEW):
                yield self._tensor(target, dtype)

    def preview_tensors(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The tensors of `dtype` by which a clover_moe checkpoint previews by itself: the adapter's names for them.

        Four of every delta-net layer: `layers.{i}.preview.right`, `.logit_scale`, `.history_bias` and `.history_c`.
        Empty for the other families. Raises CorruptFileError as `tensors` does.
        """
        previews = (target for target in self._targets if target.name.startswith(PREVIEW))
        tensors = (self._tensor(target, dtype) for target in previews)
        return {name.removeprefix(PREVIEW): tensor for name, tensor in tensors}

    def _tensor(self, target: names.Target, dtype: torch.dtype) -> tuple[str, torch.Tensor]:
        if self.skills is not None and target.name in self.skills.pairs:
            name, tensor = names.join(target, torch.float32, self._reader.read)
            self.skills.merge(name, tensor)
            stored = (self._reader.dtype(source.name) for source in target.sources)
            tensor = tensor.to(functools.reduce(torch.promote_types, stored)).to(dtype)
        else:
            name, tensor = names.join(target, dtype, self._reader.read)
        # The sum is not finite where a value isn't, takes one pass and no memory, and may overflow without any fault.
        if not torch.isfinite(tensor.sum()) and not all(torch.isfinite(part).all() for part in tensor):
            theirs = ", ".join(dict.fromkeys(source.name for source in target.sources[:3]))
            raise CorruptFileError(
                f"{self.path}: {name} (from {theirs}) holds NaN or infinite values as {dtype}; fetch the model again"
            )
        return name, tensor

    def tokenizer(self) -> Tokenizer:
        """The tokenizer and chat template that came with the weights."""
        from ..text import Tokenizer

        if isinstance(self._reader, GgufReader):
            return Tokenizer.from_gguf(self._reader.plain_metadata())
        return Tokenizer.from_hf(self.path)

    def copy_tokenizer(self, folder: Path) -> None:
        """Put the tokenizer's files beside weights that were written into `folder`. Nothing, for a GGUF file."""
        if self.format == "safetensors":
            for name in TOKENIZER_FILES:
                if (self.path / name).is_file():
                    shutil.copyfile(self.path / name, folder / name)

    def fingerprint(self) -> str:
        """What these very weights are known by: `base_fingerprint`, hashed with the digest of the skills, if any."""
        plain = self.base_fingerprint()
        return plain if self.skills is None else hashlib.sha256(f"{plain} {self.skills.digest}".encode()).hexdigest()

    def base_fingerprint(self) -> str:
        """Without skills: sha256 (hex) over the sizes and every norm weight as bfloat16, in name order.

        In hybrids also over the convolutions and decays of delta-net layers. None of these is ever quantised, so a GGUF
        file and the safetensors it was made from have one fingerprint. Numbers that a format rounds (epsilon, rope)
        stay out of it.
        """
        config = self.config
        digest = hashlib.sha256()
        for key in _IDENTITY:
            digest.update(f"{key}={getattr(config, key)}\n".encode())
        for key, value in _hybrid_identity(config):
            digest.update(f"{key}={value}\n".encode())
        for target in sorted(self._targets, key=lambda target: target.name):
            if target.name.endswith(("norm.weight", *_HYBRID_TENSORS)):
                _, tensor = names.join(target, torch.bfloat16, self._reader.read)
                digest.update(target.name.encode() + b"\n")
                digest.update(tensor.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def _hybrid_identity(config: ModelConfig) -> Iterator[tuple[str, object]]:
    """(key, value) of what makes a model another one and is set in hybrids only."""
    for key in ("output_gate", "norm_offset"):
        if getattr(config, key):
            yield key, getattr(config, key)
    for key, fields in _HYBRID_IDENTITY.items():
        if (sizes := getattr(config, key)) is not None:
            yield from ((f"{key}.{field}", getattr(sizes, field)) for field in fields)
            kinds = config.mixers if key == "delta_net" else config.feed_forwards
            yield f"{key}.layers", "".join(kind[0] for kind in kinds)


def open_checkpoint(
    source: str | Path, *, skills: Literal["auto"] | str | Path | None = None, progress: bool = True
) -> Checkpoint:
    """Open a model: a shelf name (pulled if need be), a HF folder, a `.gguf` file or a hub id, tried in that order.

    A Path, or a string with a separator that exists on disk, is never taken for a shelf name. `skills`: a file that is
    merged into the weights, None, or "auto": what the shelf says of this name, which is nothing for other sources.
    Raises NotFoundError with the nearest shelf names, DownloadError, or a CheckpointError that says what is wrong with
    the files; for skills, what `read_skills` raises.
    """
    checkpoint = _open(source, progress)
    if skills == "auto":
        shelf = Shelf.default()
        skills = shelf.skills_path(source) if isinstance(source, str) and source in shelf.entries else None
    return checkpoint if skills is None else checkpoint.with_skills(Path(skills).expanduser())


def _open(source: str | Path, progress: bool) -> Checkpoint:
    path = Path(source).expanduser()
    shelf = Shelf.default()
    if isinstance(source, str) and source in shelf.entries:
        checkpoint = open_file(shelf.pull(source, progress))
        checkpoint.name, checkpoint.licence = source, shelf.entries[source].licence
        return checkpoint
    if path.exists():
        return open_file(path)
    if isinstance(source, str) and hub.is_hub_id(source):
        checkpoint = open_file(hub.fetch(source, progress=progress))
        checkpoint.name = source
        return checkpoint
    raise NotFoundError(
        f"no model {str(source)!r}: give a shelf name (nearest: {', '.join(shelf.nearest(str(source)))}), "
        "a folder with config.json and safetensors, a .gguf file, or a hub id (owner/name)"
    )


def open_file(path: Path) -> Checkpoint:
    """Open a HF folder, a folder with one `.gguf` file, or a `.gguf` file.

    Raises NotFoundError or a CheckpointError.
    """
    if path.is_dir():
        ggufs = sorted(path.glob("*.gguf"))
        if ggufs and not (path / CONFIG).exists():
            if len(ggufs) > 1:
                raise NotFoundError(f"{path} holds {len(ggufs)} GGUF files; give one: {', '.join(map(str, ggufs))}")
            return open_file(ggufs[0])
        return Checkpoint(path.resolve().name, "safetensors", HfReader(path), _card_licence(path))
    if is_pickle(path):
        raise pickle_error(path.parent, [path.name])
    if path.suffix == ".safetensors":
        raise NotFoundError(f"{path} has no config beside its weights in the file; give the folder {path.parent}")
    reader = GgufReader(path)
    licence = reader.metadata.get("general.license")
    return Checkpoint(path.stem, "gguf", reader, licence if isinstance(licence, str) else None)


def _card_licence(folder: Path) -> str | None:
    """The `license:` line of the model card's front matter, if there is one."""
    try:
        with (folder / "README.md").open(encoding="utf-8", errors="replace") as card:
            head = card.read(4096)
    except OSError:
        return None
    front = head.split("---", 2)[1] if head.startswith("---") and head.count("---") > 1 else ""
    found = re.search(r"^license:\s*(\S+)\s*$", front, re.MULTILINE)
    return found.group(1) if found else None
