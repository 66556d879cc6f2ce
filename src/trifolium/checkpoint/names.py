"""The name tables (tables.py) with a model's sizes filled in, and tensors split and joined by them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch

from ..config import DeltaNetConfig, ExpertsConfig, ModelConfig
from ..errors import TensorMismatchError, UnsupportedModelError
from .tables import HYBRIDS, TABLES, Part, Row

Naming = Literal["hf", "gguf"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """One of their tensors, with names and sizes filled in.

    `heads` is 0 where the rows are not rotary. `pieces` is empty where the rows are in our order, see tables.Part.
    """

    name: str
    shape: Shape
    heads: int
    pieces: tuple[int, ...] = ()


@dataclass(frozen=True)
class Target:
    """One of our tensors and the sources that fill it, one after another in memory order."""

    name: str
    shape: Shape
    sources: tuple[Source, ...]


def targets(config: ModelConfig, naming: Naming, found: Collection[str] = ()) -> Iterator[Target]:
    """All tensors of a model in our names, in the order of the table and of the layers.

    `found`: the names in a file, by which a row that is published in two forms takes the one that is there.
    Raises UnsupportedModelError when `config` wants a tensor that the family's table doesn't have.
    """
    table = TABLES[config.family]
    if naming == "gguf" and config.family in HYBRIDS:
        raise UnsupportedModelError(f"GGUF files of {config.family} models are not read; take the safetensors version")
    flags = _flags(config)
    known = {row.when for row in table} | {row.kind for row in table}
    wanted = [flag for flag, value in flags.items() if value] + sorted({*config.mixers, *config.feed_forwards})
    missing = [what for what in wanted if what not in known]
    if config.output_gate and config.family not in HYBRIDS:
        missing.append("output_gate")
    if missing:
        raise UnsupportedModelError(f"a {config.family} model has no {', '.join(missing)}; choose another family")
    rows = [row for row in table if row.when is None or flags[row.when]]
    sizes = _sizes(config)
    yield from (_target(row, naming, sizes, 0, found) for row in rows if "{i}" not in row.ours)
    for layer, kinds in enumerate(zip(config.mixers, config.feed_forwards, strict=True)):
        for row in rows:
            if "{i}" in row.ours and (row.kind is None or row.kind in kinds):
                yield _target(row, naming, sizes, layer, found)


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor that a model of this config has, in our names."""
    return {target.name: target.shape for target in targets(config, "hf")}


def split(target: Target, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The table in reverse: (their name, their part) of one of our tensors: views, but for rows in another order."""
    for source, ours in _parts(target, tensor.contiguous()):
        if source.pieces:
            theirs = torch.empty_like(ours)
            for a, b in _pieces(source, theirs, ours):
                a.copy_(b)
            yield source.name, theirs
        else:
            yield source.name, ours


def join(target: Target, dtype: torch.dtype, read: Callable[[Source, torch.Tensor], None]) -> tuple[str, torch.Tensor]:
    """(our name, our tensor): `read(source, out)` fills each part in place, so nothing is held twice.

    Only a part whose rows have another order than ours is held twice while they are put in order.
    """
    out = torch.empty(target.shape, dtype=dtype)
    for source, ours in _parts(target, out):
        if source.pieces:
            theirs = torch.empty_like(ours)
            read(source, theirs)
            for a, b in _pieces(source, theirs, ours):
                b.copy_(a)
        else:
            read(source, ours)
    return target.name, out


def check_shapes(
    wanted: Iterable[tuple[str, Shape]], found: Mapping[str, Shape], where: str, *, ignored: Iterable[str] = ()
) -> None:
    """Raises TensorMismatchError that lists every missing, unexpected and mis-shaped tensor of `found`."""
    expected = dict(wanted)
    extra = set(found) - set(expected) - set(ignored)
    wrong = [name for name in expected if name in found and found[name] != expected[name]]
    faults = [f"missing: {name} {list(shape)}" for name, shape in expected.items() if name not in found]
    faults += [f"unexpected: {name} {list(found[name])}" for name in sorted(extra)]
    faults += [f"mis-shaped: {name} is {list(found[name])}, expected {list(expected[name])}" for name in wrong]
    if faults:
        raise TensorMismatchError(
            f"{where}: {len(faults)} tensors do not fit the model's config:\n  " + "\n  ".join(faults)
        )


def _parts(target: Target, tensor: torch.Tensor) -> Iterator[tuple[Source, torch.Tensor]]:
    """(source, the view of our contiguous `tensor` that it fills, in the source's shape)."""
    start = 0
    for source in target.sources:
        size = prod(source.shape)
        yield source, tensor.view(-1).narrow(0, start, size).view(source.shape)
        start += size


def _pieces(source: Source, theirs: torch.Tensor, ours: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(their view, our view) [heads, piece, in] of each piece: their rows go head by head, ours piece by piece."""
    heads = source.shape[0] // sum(source.pieces)
    by_head = theirs.view(heads, sum(source.pieces), -1)
    start = 0
    for piece in source.pieces:
        rows = ours.narrow(0, heads * start, heads * piece)
        yield by_head.narrow(1, start, piece), rows.view(heads, piece, -1)
        start += piece


def _target(row: Row, naming: Naming, sizes: Mapping[str, int], layer: int, found: Collection[str]) -> Target:
    def source(part: Part, expert: int) -> Source:
        name = (part.hf if naming == "hf" else part.gguf).replace("{i}", str(layer)).replace("{e}", str(expert))
        shape = tuple(sizes[letter] for letter in part.shape.split())
        pieces = tuple(sizes[letter] for letter in part.pieces.split())
        return Source(name, shape, sizes[part.heads] if part.heads else 0, pieces)

    parts = row.other if row.other and source(row.other[0], 0).name in found else row.parts
    experts = sizes["E"] if any("{e}" in part.hf for part in parts) else 1
    sources = tuple(source(part, expert) for expert in range(experts) for part in parts)
    if row.shape:
        shape = tuple(sizes[letter] for letter in row.shape.split())
    else:
        shape = (sum(source.shape[0] for source in sources), *sources[0].shape[1:])
    return Target(row.ours.replace("{i}", str(layer)), shape, sources)


def _flags(config: ModelConfig) -> dict[str, bool]:
    experts = config.experts if "experts" in config.feed_forwards else None
    return {
        "untied": not config.tie_embeddings,
        "qkv_bias": config.qkv_bias,
        "out_bias": config.out_bias,
        "mlp_bias": config.mlp_bias,
        "qk_norm": config.qk_norm,
        "shared": experts is not None and experts.shared_size > 0,
    }


def _sizes(config: ModelConfig) -> dict[str, int]:
    return {
        "1": 1,
        "V": config.vocab_size,
        "D": config.hidden_size,
        "F": config.intermediate_size,
        "H": config.num_heads,
        "K": config.num_kv_heads,
        "d": config.head_dim,
        "Hd": config.q_size,
        "Qd": config.q_size * (2 if config.output_gate else 1),
        "Kd": config.kv_size,
        **(_delta_net_sizes(config.delta_net) if config.delta_net else {}),
        **(_experts_sizes(config.experts) if config.experts else {}),
    }


def _delta_net_sizes(delta_net: DeltaNetConfig) -> dict[str, int]:
    per_key_head = delta_net.value_heads // delta_net.key_heads
    return {
        "v": delta_net.value_heads,
        "2v": 2 * delta_net.value_heads,
        "n": per_key_head,
        "dk": delta_net.key_dim,
        "dv": delta_net.value_dim,
        "n*dv": per_key_head * delta_net.value_dim,
        "vd": delta_net.value_size,
        "C": delta_net.conv_size,
        "C+vd": delta_net.conv_size + delta_net.value_size,
        "W": delta_net.conv_width,
        "W-1": delta_net.conv_width - 1,
    }


def _experts_sizes(experts: ExpertsConfig) -> dict[str, int]:
    return {"E": experts.count, "M": experts.size, "2M": 2 * experts.size, "S": experts.shared_size}
