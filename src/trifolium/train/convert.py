"""From an autoregressive checkpoint to a block-diffusion model: a fresh adapter, and training runs by recipe."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..api import read_adapter
from ..checkpoint import Checkpoint, open_checkpoint, save_adapter
from ..config import AdapterConfig
from ..errors import ConfigError, TrainingError, UsageError
from ..model import Adapter, Transformer
from ..text import ChatTemplate, encode_chat
from .data import Conversation, encode_corpus, read_corpus
from .loop import METRICS, Progress, train_adapter
from .plot import plot_metrics
from .recipe import Recipe

ADAPTER = "adapter.safetensors"


def fresh_adapter(checkpoint: Checkpoint, model: Transformer, recipe: Recipe) -> Adapter:
    """An adapter for these weights that changes nothing yet.

    Delta-net layers get preview parameters with which a block reads its history almost as commit rows would
    (ops.preview.initial_preview), or the base's own where it is a clover_moe checkpoint.
    """
    config = checkpoint.config
    adapter = Adapter(
        AdapterConfig(
            base_name=checkpoint.name,
            base_fingerprint=checkpoint.fingerprint(),
            rank=recipe.rank,
            alpha=recipe.alpha,
            chain_size=recipe.chain_size,
            max_block=recipe.max_block,
            block_size=recipe.block_size,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
        ),
        config,
    )
    adapter.reset(model.embed.weight, recipe.seed)
    if config.preview is not None:  # a diffusion model already: go on from how it previews
        adapter.load_state_dict(checkpoint.preview_tensors(torch.float32), strict=False)
        with torch.no_grad():
            if adapter.mask_embedding is not None:
                adapter.mask_embedding.copy_(model.embed.weight[config.preview.mask_token])
    return adapter


def convert_base(base: str, recipe: Recipe, path: Path) -> AdapterConfig:
    """Write a fresh adapter for `base` to `path`. Raises what opening the base raises; TrainingError on a full disk."""
    checkpoint = open_checkpoint(base, skills="auto")
    model = load_for_training(checkpoint)
    adapter = fresh_adapter(checkpoint, model, recipe)
    _save(path, adapter)
    return adapter.config


def load_for_training(checkpoint: Checkpoint) -> Transformer:
    """The base with plain float32 weights, nothing packed."""
    model = Transformer(checkpoint.config)
    model.fill(checkpoint.tensors(torch.float32), None)
    return model


@dataclass(frozen=True)
class TrainingData:
    """Both splits of a recipe's corpus, tokenised."""

    training: list[Conversation]
    held_out: list[Conversation]


def load_data(files: Sequence[str], folder: Path, checkpoint: Checkpoint, max_length: int) -> TrainingData:
    """Read and tokenise a recipe's files (relative to `folder`) with the base's tokenizer and template."""
    tokenizer = checkpoint.tokenizer()
    template = ChatTemplate.of(tokenizer)
    end = tokenizer.eot_id if tokenizer.eot_id is not None else tokenizer.eos_id
    if end is None:
        raise ConfigError(f"{checkpoint.name} has no end-of-turn token, so answers can't be told apart")
    items = read_corpus([folder / name for name in files])
    training, held_out = encode_corpus(
        items,
        lambda messages: encode_chat(tokenizer, template, messages),
        lambda text: tokenizer.encode(text, special=False),
        end,
        max_length,
    )
    return TrainingData(training, held_out)


def train_recipe(
    recipe_path: str | Path,
    *,
    out: str | Path | None = None,
    start_from: str | Path | None = None,
    on_step: Callable[[Progress], None] = lambda progress: None,
    stop_at: int | None = None,
    compile_layers: bool = False,
) -> dict[str, Any]:
    """Train the adapter that a recipe describes; returns the last metrics.

    Continues from the checkpoint in `out` (the recipe's own by default), if there is one; else starts from the adapter
    file `start_from`, with a fresh optimiser; else from nothing. Leaves adapter.safetensors, metrics.jsonl and
    curves.png in `out`. `compile_layers` needs a C++ compiler and pays off on runs of more than a few minutes.
    """
    recipe_path = Path(recipe_path)
    recipe = Recipe.load(recipe_path)
    folder = Path(out) if out is not None else recipe_path.parent / recipe.out
    checkpoint = open_checkpoint(recipe.base, skills=recipe.skills_path(recipe_path.parent))
    data = load_data(recipe.data, recipe_path.parent, checkpoint, recipe.max_length)
    model = load_for_training(checkpoint)
    if start_from is None:
        model.adapter = fresh_adapter(checkpoint, model, recipe)
    else:
        model.adapter = read_adapter(Path(start_from), checkpoint).float()
        model.adapter.requires_grad_(True)
    if compile_layers:
        model.compile_streams()
    try:
        record = train_adapter(model, recipe, data.training, data.held_out, folder, on_step=on_step, stop_at=stop_at)
    finally:
        if model.adapter is not None and (folder / METRICS).exists():
            _save(folder / ADAPTER, model.adapter)
    with contextlib.suppress(UsageError):  # a courtesy: without matplotlib the metrics file says the same
        plot_metrics(folder / METRICS, folder / "curves.png")
    return record


def _save(path: Path, adapter: Adapter) -> None:
    try:
        save_adapter(path, adapter.config, dict(adapter.named_parameters()))
    except OSError as error:
        raise TrainingError(f"can't write {path}: {os.strerror(error.errno or 0)}") from None
