"""Write a model as a HF folder: config.json and safetensors, sharded by size, whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import mkdtemp

import torch
from safetensors.torch import save_file

from ..config import ModelConfig
from ..errors import TensorMismatchError, UsageError
from . import names
from .hf import CONFIG, INDEX, SINGLE
from .hf_config import config_to_hf

SHARD_BYTES = 4 << 30


def write_hf(
    folder: Path,
    config: ModelConfig,
    tensors: Iterable[tuple[str, torch.Tensor]],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> Path:
    """Write our `tensors` (all of one dtype) as the HF folder `folder`, which must not exist. Returns `folder`.

    A shard holds at most `shard_bytes` unless one tensor alone is larger; one shard is in memory at a time.
    Raises UsageError (the folder exists), TensorMismatchError (not the tensors that `config` describes), and
    UnsupportedModelError (config.json can't express the config). Nothing is left behind then.
    """
    if folder.exists():
        raise UsageError(f"{folder} exists already; choose another folder, or remove it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        dtype = _write_shards(temporary, config, tensors, shard_bytes)
        (temporary / CONFIG).write_text(json.dumps(config_to_hf(config, dtype), indent=2) + "\n")
        temporary.chmod(0o755)
        for file in temporary.iterdir():  # safetensors makes files that only their owner can read
            file.chmod(0o644)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def _write_shards(
    folder: Path, config: ModelConfig, tensors: Iterable[tuple[str, torch.Tensor]], shard_bytes: int
) -> torch.dtype:
    wanted = {target.name: target for target in names.targets(config, "hf")}
    seen: dict[str, names.Shape] = {}
    dtypes: set[torch.dtype] = set()
    shards: list[list[str]] = []
    shard: dict[str, torch.Tensor] = {}
    total = size = 0

    def flush() -> None:
        # Numbered without the total, which is known only at the end; renamed then.
        save_file(shard, folder / f"shard-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(shard))
        shard.clear()

    for name, tensor in tensors:
        seen[name] = tuple(tensor.shape)
        dtypes.add(tensor.dtype)
        if name not in wanted or seen[name] != wanted[name].shape:
            continue  # listed below, together with everything else that is wrong
        for theirs, part in names.split(wanted[name], tensor):
            if shard and size + part.nbytes > shard_bytes:
                flush()
                size = 0
            # A copy, since parts of one fused tensor share memory, which safetensors refuses.
            shard[theirs] = part.detach().cpu().clone(memory_format=torch.contiguous_format)
            size += part.nbytes
            total += part.nbytes
    names.check_shapes(((name, target.shape) for name, target in wanted.items()), seen, "the tensors to write")
    if len(dtypes) != 1:
        raise TensorMismatchError(f"the tensors to write mix dtypes: {', '.join(sorted(map(str, dtypes)))}")
    flush()
    _name_shards(folder, shards, total)
    return dtypes.pop()


def _name_shards(folder: Path, shards: list[list[str]], total: int) -> None:
    if len(shards) == 1:
        (folder / "shard-0").rename(folder / SINGLE)
        return
    weight_map: dict[str, str] = {}
    for number, contents in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"shard-{number}").rename(folder / file)
        weight_map |= dict.fromkeys(contents, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")
