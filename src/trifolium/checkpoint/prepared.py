"""Weights as products want them, kept on disk: a later start maps a file instead of dequantising and quantising again.

`<cache>/weights/<fingerprint>-<source>-<dtype>.safetensors`. The plain base's fingerprint alone doesn't say which
weights these are (a GGUF file and the safetensors that it was made from share one), so `source` hashes where the
checkpoint's files lie, their sizes and times, and the merged skills: a file that was written since gives another name.
For int8 a product's weight is stored as `<name>.values` and `<name>.scale`, for int4 as `.values`, `.step` and `.least`
(ops.linear.quantised); everything else stays float32, or bfloat16 where that was asked for. A file is checked against
the model before it is used, and made anew, with a note, where it isn't right.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path

import torch
from filelock import FileLock

from ..errors import ConfigError, CorruptFileError
from ..ops.formats import INT4, QUANTISED
from ..ops.linear.quantised import GROUP, Groups, QuantisedWeight, quantise, quantise_groups
from .checkpoint import Checkpoint
from .safetensors_file import DTYPES, contents, mapped, metadata, write
from .shelf import cache_folder

FORMAT = 1
METADATA_KEY = "trifolium_weights"
MIN_PARAMETERS = 32_000_000
"""Smaller models load in no time, and would only litter the folder."""
LIMIT_VARIABLE = "TRIFOLIUM_WEIGHTS_GB"
LIMIT_GB = 16.0
RESERVE_BYTES = 1 << 30
"""What must stay free on the disk."""
LOCK_SECONDS = 120
EMBED = "embed.weight"

Weight = torch.Tensor | QuantisedWeight | Groups
Layout = dict[str, tuple[torch.dtype, tuple[int, ...]]]
Note = Callable[[str], None]


@dataclass(frozen=True)
class Products:
    """The weights that are multiplied in the chosen dtype.

    `int8`: those that are int8 where the others are int4. `stacked`: weights of many experts in one, which are kept in
    float32 then. `tied_head`: the name of a head that is the embedding.
    """

    names: frozenset[str]
    int8: frozenset[str] = frozenset()
    stacked: frozenset[str] = frozenset()
    tied_head: str | None = None

    def form(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """How a weight is kept."""
        plain = name not in self.names and name != self.tied_head
        if plain or (dtype == INT4 and name in self.stacked):
            return torch.float32
        return torch.int8 if dtype == INT4 and name in self.int8 else dtype


@dataclass(frozen=True)
class Wanted:
    """Weights of one checkpoint in one dtype, and what their file must hold."""

    checkpoint: Checkpoint
    dtype: torch.dtype
    products: Products

    @cached_property
    def layout(self) -> Layout:
        """dtype and shape of everything in the file, by name."""
        layout: Layout = {}
        for name, shape in self.checkpoint.shapes.items():
            if name == EMBED and self._quantised_head:
                layout |= _entries(self._quantised_head, shape, torch.int8)
            layout |= _entries(name, shape, self.products.form(name, self.dtype))
        return layout

    @cached_property
    def key(self) -> str:
        """The file's name without its suffix."""
        source = hashlib.sha256(repr(sorted(self.layout)).encode())
        for path in self.checkpoint.files:
            status = path.stat()
            times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
            source.update(f"{path.resolve()} {status.st_size} {times}\n".encode())
        if self.checkpoint.skills is not None:
            source.update(f"skills {self.checkpoint.skills.digest}\n".encode())
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.checkpoint.base_fingerprint()[:16]}-{source.hexdigest()[:16]}-{dtype}"

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors in the file."""
        return sum(dtype.itemsize * prod(shape) for dtype, shape in self.layout.values())

    @property
    def worthwhile(self) -> bool:
        """Whether there is work to save: quantising, or dequantising a GGUF file."""
        large = sum(map(prod, self.checkpoint.shapes.values())) >= MIN_PARAMETERS
        return large and (self.dtype in QUANTISED or self.checkpoint.format == "gguf")

    def prepare(self) -> Iterator[tuple[str, Weight]]:
        """The weights, straight from the checkpoint, one after another."""
        for name, tensor in self.checkpoint.tensors(torch.float32):
            if name == EMBED and self._quantised_head:
                yield self._quantised_head, quantise(tensor)
            form = self.products.form(name, self.dtype)
            if form == torch.int8:
                yield name, quantise(tensor)
            else:
                yield name, quantise_groups(tensor) if form == INT4 else tensor.to(form)

    @property
    def _quantised_head(self) -> str | None:
        """A tied head has integers of its own, since the embedding's rows are read in float32."""
        return self.products.tied_head if self.dtype in QUANTISED else None


class PreparedWeights:
    """The folder of prepared weights: at most `limit` bytes, of which the least recently used go first."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    @classmethod
    def default(cls) -> PreparedWeights:
        """In the user's cache folder; $TRIFOLIUM_WEIGHTS_GB bounds it, and 0 turns it off. Raises ConfigError."""
        text = os.environ.get(LIMIT_VARIABLE, str(LIMIT_GB))
        try:
            limit = float(text)
        except ValueError:
            limit = -1.0
        if not 0 <= limit < 1e9:
            raise ConfigError(f"{LIMIT_VARIABLE} is {text!r}: give the gigabytes that prepared weights may take, or 0")
        return cls(cache_folder(os.environ) / "weights", int(limit * 1e9))

    def tensors(
        self, checkpoint: Checkpoint, dtype: torch.dtype, products: Products, note: Note
    ) -> Iterator[tuple[str, Weight]]:
        """(our name, weight) of every tensor: mapped from the kept file, which is made first if need be.

        Where keeping it isn't worth the disk, or isn't possible, the weights come from the checkpoint itself; `note` is
        told what the user should know. Raises what `Checkpoint.tensors` raises.
        """
        wanted = Wanted(checkpoint, dtype, products)
        kept = self._kept(wanted, note) if self.limit and wanted.worthwhile else None
        yield from wanted.prepare() if kept is None else _taken_from(kept, wanted)

    def clear(self, fingerprint: str = "") -> int:
        """Delete prepared weights, those of one model or all of them; returns the bytes that were freed."""
        freed = 0
        for path in self._files():
            if path.name.startswith(fingerprint[:16]):
                freed += path.stat().st_size
                path.unlink(missing_ok=True)
        return freed

    def _kept(self, wanted: Wanted, note: Note) -> dict[str, torch.Tensor] | None:
        path = self.folder / f"{wanted.key}.safetensors"
        try:
            if (found := _find(path, wanted, note)) is not None:
                return found
            if wanted.nbytes > self.limit:
                note(f"prepared weights of {wanted.nbytes / 1e9:.1f} GB are not kept: {LIMIT_VARIABLE} allows less")
                return None
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock", timeout=LOCK_SECONDS):
                # Another process may have made it while this one waited.
                return _find(path, wanted, lambda text: None) or self._make(path, wanted, note)
        except OSError as error:  # a lock that can't be had is one, too
            note(f"prepared weights can't be kept in {self.folder}: {error}")
            return None

    def _make(self, path: Path, wanted: Wanted, note: Note) -> dict[str, torch.Tensor] | None:
        self._make_room(wanted.nbytes)
        if (free := shutil.disk_usage(self.folder).free) < wanted.nbytes + RESERVE_BYTES:
            note(f"prepared weights of {wanted.nbytes / 1e9:.1f} GB are not kept: {free / 1e9:.1f} GB of disk are left")
            return None
        write(path, wanted.layout, _flat(wanted.prepare()), {METADATA_KEY: f"{FORMAT} {wanted.key}"})
        return _find(path, wanted, note)

    def _make_room(self, size: int) -> None:
        """Remove what was left half-written, and the least recently used files, until `size` more bytes fit."""
        for partial in self.folder.glob(".*.safetensors"):  # nobody else writes while the lock is held
            partial.unlink(missing_ok=True)
        files = self._files()
        total = sum(path.stat().st_size for path in files)
        for path in files:
            if total + size <= self.limit:
                return
            total -= path.stat().st_size
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """Every file, the least recently used one first."""
        found = [path for path in self.folder.glob("*.safetensors") if path.is_file()]
        return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def _entries(name: str, shape: tuple[int, ...], form: torch.dtype) -> Layout:
    """What one weight is in the file."""
    if form == torch.int8:
        return {f"{name}.values": (torch.int8, shape), f"{name}.scale": (torch.float32, shape[:-1])}
    if form == INT4:
        outputs, groups = shape[0], -(-shape[1] // GROUP)
        values, factors = (torch.uint8, (outputs, groups * GROUP)), (torch.float16, (outputs, groups))
        return {f"{name}.values": values, f"{name}.step": factors, f"{name}.least": factors}
    return {name: (form, shape)}


def _find(path: Path, wanted: Wanted, note: Note) -> dict[str, torch.Tensor] | None:
    """The file's tensors, mapped at once, so that removing the file later does no harm. None if it can't be used."""
    if not path.is_file():
        return None
    try:
        found = _checked(path, wanted)
    except CorruptFileError as error:
        note(f"prepared weights are not usable, and are made anew: {error}")
        return None
    with suppress(OSError):  # a disk that can't be written: it may go sooner than it should
        os.utime(path)  # used just now
    return found


def _checked(path: Path, wanted: Wanted) -> dict[str, torch.Tensor]:
    """What lies in the file, in the model's order. Raises CorruptFileError unless the model wants exactly that."""
    stored = {entry.name: entry for entry in contents(path)}
    if (said := metadata(path).get(METADATA_KEY)) != f"{FORMAT} {wanted.key}":
        raise CorruptFileError(f"{path} says that it is {said!r}, not format {FORMAT} of this model")
    given = {name: (DTYPES.get(entry.dtype), entry.shape) for name, entry in stored.items()}
    if given != wanted.layout:
        wrong = [name for name in given.keys() | wanted.layout.keys() if given.get(name) != wanted.layout.get(name)]
        raise CorruptFileError(f"{path} holds other tensors than the model: {', '.join(sorted(wrong)[:4])}")
    found = {name: mapped(stored[name]) for name in wanted.layout}
    for name, tensor in found.items():
        if name.endswith((".scale", ".step", ".least")):
            least = -torch.inf if name.endswith(".least") else 0
            if not bool(((tensor >= least) & tensor.isfinite()).all()):
                raise CorruptFileError(f"{path}: {name} holds numbers that are no scales")
    return found


def _flat(weights: Iterator[tuple[str, Weight]]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, weight in weights:
        if isinstance(weight, torch.Tensor):
            yield name, weight
        elif isinstance(weight, QuantisedWeight):
            yield f"{name}.values", weight.values
            yield f"{name}.scale", weight.scale
        else:
            yield f"{name}.values", weight.values
            yield f"{name}.step", weight.step
            yield f"{name}.least", weight.least


def _taken_from(kept: dict[str, torch.Tensor], wanted: Wanted) -> Iterator[tuple[str, Weight]]:
    """The weights, each one leaving `kept`, so that what its taker drops is unmapped."""
    for name in list(kept):
        whole = name.removesuffix(".values")
        if whole == name:
            if name in wanted.checkpoint.shapes:
                yield name, kept.pop(name)
        elif f"{whole}.scale" in kept:
            yield whole, QuantisedWeight(kept.pop(name), kept.pop(f"{whole}.scale"))
        else:
            inputs = wanted.checkpoint.shapes[whole][1]
            yield whole, Groups(kept.pop(name), kept.pop(f"{whole}.step"), kept.pop(f"{whole}.least"), inputs)
