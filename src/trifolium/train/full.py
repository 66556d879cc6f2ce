"""Full fine-tuning by recipe: an AR hybrid in, a clover_moe checkpoint out, on one process or under torchrun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from ..api import native_adapter
from ..checkpoint import Checkpoint, open_checkpoint, write_hf
from ..config import ModelConfig, PreviewConfig
from ..errors import ConfigError, UnsupportedModelError, UsageError
from ..model import Adapter, Transformer
from .convert import TrainingData, load_data
from .diffuse import DiffuseTask
from .distributed import ShardedStore, gather, shard
from .loop import Progress, quiet, train
from .recipe import Diffuse
from .world import World

MODEL = "model"
FAMILIES = ("qwen3_5_moe_text", "clover_moe")


class Full(Diffuse):
    """A recipe file (TOML) of a whole model; `kind = "full"` tells it from an adapter's. Paths are relative to it.

    base, data, out, max_length: as in an adapter's recipe. mask_token: id of the token whose embedding becomes the
    mask's, one that no text holds; not needed where the base is a clover_moe checkpoint already. block_size,
    coreset_top_p: what the checkpoint previews with by default, see PreviewConfig.
    """

    kind: Literal["full"]
    base: str
    data: tuple[str, ...] = Field(min_length=1)
    out: str = "runs/full"
    max_length: int = Field(256, gt=8)
    mask_token: int | None = Field(None, ge=0)
    block_size: int = Field(8, gt=0)
    coreset_top_p: float = Field(1.0, gt=0, le=1)


def clover_config(config: ModelConfig, recipe: Full, where: str) -> ModelConfig:
    """The config of the checkpoint that comes out. Raises UnsupportedModelError or ConfigError that says what to do."""
    if config.family not in FAMILIES:
        raise UnsupportedModelError(
            f"{where} is a {config.family} model; full fine-tuning makes clover_moe checkpoints of "
            f"{' and '.join(FAMILIES)} models only. Train an adapter instead (trifolium convert)"
        )
    mask = recipe.mask_token if config.preview is None else config.preview.mask_token
    if mask is None:
        raise ConfigError("the recipe needs mask_token: the id of a token that no text holds, to stand for masks")
    if mask >= config.vocab_size:
        raise ConfigError(f"mask_token {mask} is outside the vocabulary of {config.vocab_size}")
    preview = PreviewConfig(mask_token=mask, block_size=recipe.block_size, coreset_top_p=recipe.coreset_top_p)
    return config.model_copy(update={"family": "clover_moe", "preview": preview})


def load_clover(checkpoint: Checkpoint, config: ModelConfig) -> Transformer:
    """The checkpoint's weights in float32, with its own preview parameters or fresh ones."""
    model = Transformer(config)
    fresh = checkpoint.config.preview is None
    model.adapter = Adapter.native(config, checkpoint.name) if fresh else native_adapter(checkpoint)
    model.fill(checkpoint.tensors(torch.float32), None)
    return model


def train_full(
    recipe_path: Path,
    *,
    out: Path | None = None,
    on_step: Callable[[Progress], None] = quiet,
    stop_at: int | None = None,
) -> dict[str, Any]:
    """Train by a `Full` recipe; returns the last metrics. Leaves a HF folder `model` in `out` when all steps are done.

    Continues from the checkpoint in `out`, if there is one. Under torchrun, all processes call this together, and the
    model is sharded over them.
    """
    recipe = Full.load(recipe_path)
    world = World.join()
    folder = out if out is not None else recipe_path.parent / recipe.out
    if (folder / MODEL).exists():
        raise UsageError(f"{folder / MODEL} exists already: this run is done; name another --out for a new one")
    checkpoint = open_checkpoint(recipe.base)
    config = clover_config(checkpoint.config, recipe, recipe.base)
    data: TrainingData = load_data(recipe.data, recipe_path.parent, checkpoint, recipe.max_length)
    model = load_clover(checkpoint, config)
    teacher = load_clover(checkpoint, config).requires_grad_(False) if recipe.teacher_weight else None
    task = DiffuseTask(model, recipe, data.training, data.held_out, teacher=teacher, world=world)
    shard(model, world)
    store = ShardedStore(folder, world) if world.size > 1 or ShardedStore(folder, world).exists() else None
    record = train(task, recipe, folder, on_step=on_step, stop_at=stop_at, world=world, store=store)
    if stop_at is None or stop_at >= recipe.steps:
        tensors = gather(model, world)
        if world.leads:
            stored = ((name, tensor.to(torch.bfloat16)) for name, tensor in tensors.items())
            write_hf(folder / MODEL, config, stored)
            checkpoint.copy_tokenizer(folder / MODEL)
    return record
