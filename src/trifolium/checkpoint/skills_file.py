"""Skills on disk: low-rank deltas of a base's own weights, which are added to them before anything else is done.

`W + alpha / rank * B A` for each weight that a file names (Hu et al. 2021, arXiv:2106.09685), with A [r, I] stored as
`<weight>.A` and B [O, r] as `<weight>.B`. Letters: r rank, O outputs, I inputs of a weight [O, I].
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from ..config import SkillsConfig
from ..errors import AdapterMismatchError, CorruptFileError, NumericalError, TensorMismatchError
from .adapter_file import Base
from .config_file import ConfigFile
from .names import Shape, check_shapes

METADATA_KEY = "trifolium_skills"
DTYPES = (torch.float16, torch.bfloat16)

_FILE = ConfigFile(METADATA_KEY, "skills file", "a ", SkillsConfig)


class Pair(NamedTuple):
    """The delta of one weight [O, I]: A [r, I] and B [O, r]."""

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True)
class Skills:
    """Deltas by the names of the weights that they change. `digest`: sha256 over all of it, hex."""

    config: SkillsConfig
    pairs: Mapping[str, Pair]
    digest: str

    @staticmethod
    def of(config: SkillsConfig, pairs: Mapping[str, Pair]) -> Skills:
        """Skills of these deltas."""
        digest = hashlib.sha256(f"scale={config.scale}\n".encode())
        for name, pair in sorted(pairs.items()):
            for tensor in pair:
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return Skills(config, pairs, digest.hexdigest())

    def merge(self, name: str, weight_OI: torch.Tensor) -> None:
        """Add the delta of the weight called `name` to it, in place and in its dtype; nothing where there is none."""
        if (pair := self.pairs.get(name)) is not None:
            a, b = (part.to(weight_OI.dtype) for part in pair)
            weight_OI.addmm_(b, a, alpha=self.config.scale)


def save_skills(path: Path, config: SkillsConfig, pairs: Mapping[str, Pair]) -> None:
    """Write deltas as float16 to `path`, whole or not at all.

    Raises NumericalError where float16 can't hold them, and OSError when the disk is full or the folder can't be
    written.
    """
    tensors = {f"{name}.{part}": x for name, pair in pairs.items() for part, x in zip("AB", pair, strict=True)}
    if bad := [name for name, x in tensors.items() if not x.to(torch.float16).isfinite().all()]:
        raise NumericalError(f"{path} is not written: {bad[0]} holds values that are not finite in float16")
    _FILE.save(path, config, tensors, torch.float16)


def read_skills_config(path: Path) -> SkillsConfig:
    """Only what a skills file says of itself; errors as in `read_skills`, but for those of its tensors."""
    return _FILE.read_config(path)


def read_skills(path: Path, base: Base, shapes: Mapping[str, Shape]) -> Skills:
    """The skills in `path`, checked against the plain base and the shapes of its weights.

    Raises NotFoundError, CorruptFileError (damaged, not a skills file, or values that are not finite),
    UnsupportedModelError (another format), AdapterMismatchError (another base) and TensorMismatchError that lists
    unknown names, wrong shapes and halves of pairs.
    """
    config, tensors = _FILE.load(path)
    if config.base_fingerprint != base.fingerprint():
        raise AdapterMismatchError(
            f"{path}: these skills were made for {config.base_name}, not for {base.name} as it is; "
            "give the skills of this model, or none (--skills none)"
        )
    names = sorted({name.rpartition(".")[0] for name in tensors})
    matrices = {name: shape for name, shape in shapes.items() if len(shape) == 2}
    if unknown := [name for name in names if name not in matrices]:
        raise TensorMismatchError(
            f"{path}: {base.name} has no weights [outputs, inputs] called {', '.join(unknown[:8])}, "
            "which the skills would change"
        )
    rank = config.rank
    wanted = [(f"{name}.A", (rank, matrices[name][1])) for name in names]
    wanted += [(f"{name}.B", (matrices[name][0], rank)) for name in names]
    check_shapes(wanted, {name: tuple(x.shape) for name, x in tensors.items()}, str(path))
    for name, x in tensors.items():
        if x.dtype not in DTYPES:
            raise CorruptFileError(f"{path}: {name} is {x.dtype}; skills are float16 or bfloat16")
        if not x.isfinite().all():
            raise CorruptFileError(f"{path}: {name} holds NaN or infinite values; fetch or train the skills again")
    return Skills.of(config, {name: Pair(tensors[f"{name}.A"], tensors[f"{name}.B"]) for name in names})
