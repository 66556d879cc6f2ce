"""Full fine-tuning by recipe: an AR hybrid in, a clover_moe checkpoint out, on one process or under torchrun."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from ..api import native_adapter
from ..checkpoint import Checkpoint, open_checkpoint, write_hf
from ..config import MAX_BLOCK, ModelConfig, PreviewConfig
from ..errors import ConfigError, UnsupportedModelError, UsageError
from ..model import Adapter, Transformer
from .convert import TrainingData, load_data
from .diffuse import DiffuseTask
from .distributed import ShardedStore, gather, shard
from .loop import METRICS, Progress, quiet, train
from .plot import plot_metrics
from .recipe import Diffuse
from .world import World

MODEL = "model"
FAMILIES = ("qwen3_5_moe_text", "clover_moe")


class Full(Diffuse):
    """A recipe file (TOML) of a whole model; `kind = "full"` tells it from an adapter's. Paths are relative to it.

    base, data, out, max_length: as in an adapter's recipe. mask_token: id of the token whose embedding becomes the
    mask's, one that no text holds; not needed where the base is a clover_moe checkpoint already. block_size,
    coreset_top_p: what the checkpoint previews with by default, see PreviewConfig; a clover_moe base's own, or 8 and 1.
    """

    kind: Literal["full"]
    base: str
    data: tuple[str, ...] = Field(min_length=1)
    out: str = "runs/full"
    max_length: int = Field(256, gt=8)
    mask_token: int | None = Field(None, ge=0)
    block_size: int | None = Field(None, gt=0, le=MAX_BLOCK)
    coreset_top_p: float | None = Field(None, gt=0, le=1)


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
    preview = config.preview or PreviewConfig(mask_token=mask, block_size=8)
    given = {"block_size": recipe.block_size, "coreset_top_p": recipe.coreset_top_p}
    preview = preview.model_copy(update={key: value for key, value in given.items() if value is not None})
    return config.model_copy(update={"family": "clover_moe", "preview": preview})


def load_clover(checkpoint: Checkpoint, config: ModelConfig) -> Transformer:
    """The checkpoint's weights in float32, with its own preview parameters or fresh ones."""
    model = Transformer(config)
    fresh = checkpoint.config.preview is None
    model.adapter = Adapter.native(config, checkpoint.name) if fresh else native_adapter(checkpoint, config)
    model.fill(checkpoint.tensors(torch.float32), None)
    return model


def train_full(
    recipe_path: Path,
    *,
    out: Path | None = None,
    on_step: Callable[[Progress], None] = quiet,
    stop_at: int | None = None,
) -> dict[str, Any]:
    """Train by a `Full` recipe; returns the last metrics, or nothing where the run is done already.

    Leaves a HF folder `model` in `out` when all steps are done. Goes on from the checkpoint in `out`, if there is one.
    Under torchrun, all processes call this together, and the model is sharded over them; any number of processes goes
    on from what any other number left.
    """
    recipe = Full.load(recipe_path)
    world = World.join()
    folder = out if out is not None else recipe_path.parent / recipe.out
    if (folder / MODEL).exists():
        return {}
    checkpoint = open_checkpoint(recipe.base, skills="auto")
    config = clover_config(checkpoint.config, recipe, recipe.base)
    data: TrainingData = load_data(recipe.data, recipe_path.parent, checkpoint, recipe.max_length)
    model = load_clover(checkpoint, config)
    teacher = load_clover(checkpoint, config).requires_grad_(False) if recipe.teacher_weight else None
    task = DiffuseTask(model, recipe, data.training, data.held_out, teacher=teacher, world=world)
    shard(model, world)
    store = ShardedStore(folder, world)
    record = train(task, recipe, folder, on_step=on_step, stop_at=stop_at, world=world, store=store)
    if stop_at is None or stop_at >= recipe.steps:
        tensors = gather(model, world)
        if world.leads:
            stored = ((name, tensor.to(torch.bfloat16)) for name, tensor in tensors.items())
            whole = folder / f".{MODEL}"  # the folder gets its name when the tokenizer is in it, too
            shutil.rmtree(whole, ignore_errors=True)
            write_hf(whole, config, stored)
            checkpoint.copy_tokenizer(whole)
            whole.rename(folder / MODEL)
    if world.leads:
        with contextlib.suppress(UsageError):  # a courtesy: without matplotlib the metrics file says the same
            plot_metrics(folder / METRICS, folder / "curves.png")
    return record
