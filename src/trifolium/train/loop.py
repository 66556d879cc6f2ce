"""The training loop: batches, schedule, checkpoints, metrics. Resuming continues exactly where a checkpoint stands."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import TrainingError
from ..model.transformer import Transformer
from .checkpointing import load_training, save_training
from .data import BatchPlan, Conversation
from .evaluate import draft_quality
from .loss import Shortlist
from .recipe import Recipe
from .step import accumulate_gradients

CHECKPOINT = "training.safetensors"
METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Progress:
    """What a listener hears after every step."""

    step: int
    steps: int
    record: dict[str, Any]


def token_counts(conversations: Sequence[Conversation], vocab_size: int) -> torch.Tensor:
    """How often each token occurs in the answers [V]."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for c in conversations:
        counts += torch.bincount(torch.from_numpy(c.tokens[c.answer :]), minlength=vocab_size)
    return counts


def train_adapter(
    model: Transformer,
    recipe: Recipe,
    training: Sequence[Conversation],
    held_out: Sequence[Conversation],
    out: Path,
    *,
    on_step: Callable[[Progress], None] = lambda progress: None,
    stop_at: int | None = None,
) -> dict[str, Any]:
    """Train the model's adapter in place; returns the last metrics. Continues from `out` if a checkpoint is there.

    Metrics go to `out`/metrics.jsonl, a line a step; drafts are measured if there are `held_out` conversations.
    `stop_at` ends early (after a checkpoint) at that step.
    """
    adapter = model.adapter
    assert adapter is not None
    parameters = list(adapter.parameters())
    matrices = [p for p in parameters if p.dim() == 2]
    vectors = [p for p in parameters if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe.learning_rate, betas=(0.9, 0.98), fused=True,
    )  # fmt: skip
    plan = BatchPlan(training, recipe.tokens_per_batch, recipe.seed)
    shortlist = Shortlist(token_counts(training, model.config.vocab_size), recipe.shortlist, recipe.negatives)
    totals: dict[str, Any] = {"step": 0, "seconds": 0.0, "rows": 0, "answer_tokens": 0}
    if (out / CHECKPOINT).exists():
        totals = load_training(out / CHECKPOINT, adapter, optimizer, "step")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"can't make the folder {out}: {error.strerror}") from None
    last_save = time.monotonic()
    record: dict[str, Any] = {}
    end = min(recipe.steps, stop_at or recipe.steps)
    for step in range(totals["step"], end):
        started = time.perf_counter()
        rate = recipe.learning_rate_at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)
        stats = accumulate_gradients(model, plan.batch(step), recipe, shortlist, step)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, recipe.clip))
        optimizer.step()
        seconds = time.perf_counter() - started
        totals["step"] = step + 1
        totals["seconds"] += seconds
        totals["rows"] += stats.rows
        totals["answer_tokens"] += stats.answer_tokens
        record = {
            **totals, "loss": stats.chain_loss or stats.plain_loss, "plain_loss": stats.plain_loss, "lr": rate,
            "grad_norm": norm, "step_seconds": seconds, "gflops": stats.flops / seconds / 1e9,
        }  # fmt: skip
        if held_out and ((step + 1) % recipe.evaluate_every == 0 or step + 1 == end):
            quality = draft_quality(model, held_out, shortlist.frequent, block_size=recipe.block_size, limit=24)
            record["held_out"] = asdict(quality)
        _append(out / METRICS, record)
        on_step(Progress(step + 1, recipe.steps, record))
        if time.monotonic() - last_save > recipe.save_minutes * 60 or step + 1 == end:
            save_training(out / CHECKPOINT, adapter, optimizer, totals)
            last_save = time.monotonic()
    return record


def _append(path: Path, record: dict[str, Any]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise TrainingError(f"can't write {path}: {error.strerror}; the last checkpoint is intact") from None
