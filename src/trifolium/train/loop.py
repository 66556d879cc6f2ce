"""The training loop: schedule, optimiser, checkpoints, metrics, for any task that can add up its gradients.

Resuming continues exactly where a checkpoint stands.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import ConfigError, TrainingError
from ..model.transformer import Transformer
from .adapt import AdapterTask
from .checkpointing import CheckpointStore, FileStore
from .data import Conversation
from .recipe import Recipe, Schedule
from .world import World

METRICS = "metrics.jsonl"
CHECKPOINT = FileStore.NAME


class Task(Protocol):
    """What is trained, and how a step's gradients come about. All draws are keyed by (seed, step)."""

    @property
    def module(self) -> nn.Module:
        """Its parameters that require gradients are trained; a checkpoint holds all of them."""
        ...

    def accumulate(self, step: int) -> dict[str, float]:
        """Add one step's gradients; returns its metrics. `loss` is the one that people watch.

        Metrics that start with "total_" are counts: the loop sums them up over the run, under the rest of their name.
        `flops`, where given, becomes `gflops` a second.
        """
        ...

    def evaluate(self) -> dict[str, Any]:
        """Metrics on held-out data; empty where there is none."""
        ...


@dataclass(frozen=True)
class Progress:
    """What a listener hears after every step."""

    step: int
    steps: int
    record: dict[str, Any]


def quiet(progress: Progress) -> None:
    """A listener that does nothing."""


def train(
    task: Task,
    schedule: Schedule,
    out: Path,
    *,
    on_step: Callable[[Progress], None] = quiet,
    stop_at: int | None = None,
    world: World | None = None,
    store: CheckpointStore | None = None,
) -> dict[str, Any]:
    """Train the task's module in place; returns the last metrics. Continues from `out` if a checkpoint is there.

    Metrics go to `out`/metrics.jsonl, a line a step. `stop_at` ends early (after a checkpoint) at that step. In a
    world of several processes, `store` must be one that all of them share. Raises TrainingError when the disk is full
    or the loss is no longer finite; the last checkpoint is intact then.
    """
    world, store = world or World(), store or FileStore(out)
    trained = {name: p for name, p in task.module.named_parameters() if p.requires_grad}
    parameters = list(trained.values())
    if not parameters:
        raise ConfigError("nothing is left to train: the recipe freezes every parameter")
    names = [name for name, _ in task.module.named_parameters()]
    if unused := [end for end in schedule.rates if not any(name.endswith(end) for name in names)]:
        example = next(iter(trained))
        raise ConfigError(f"rates name no parameter: {', '.join(unused)} (ends of names like {example})")
    optimizer = make_optimizer(trained, schedule)
    totals: dict[str, Any] = {"step": 0, "seconds": 0.0}
    if store.exists():
        totals = store.load(task.module, optimizer)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingError(f"can't make the folder {out}: {error.strerror}") from None
    last_save = time.monotonic()
    record: dict[str, Any] = {}
    end = min(schedule.steps, stop_at or schedule.steps)
    for step in range(totals["step"], end):
        started = time.perf_counter()
        rate = schedule.learning_rate_at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate * group["rate"]
        optimizer.zero_grad(set_to_none=True)
        metrics = task.accumulate(step)
        norm = _number(torch.nn.utils.clip_grad_norm_(parameters, schedule.clip))
        if not norm < float("inf"):  # NaN too
            raise TrainingError(
                f"step {step + 1}: the gradient is not finite; lower the learning rate, or check the data"
            )
        optimizer.step()
        seconds = time.perf_counter() - started
        totals["step"] = step + 1
        totals["seconds"] += seconds
        for name in [name for name in metrics if name.startswith("total_")]:
            short = name.removeprefix("total_")
            totals[short] = totals.get(short, 0) + metrics.pop(name)
        if "flops" in metrics:
            metrics["gflops"] = metrics.pop("flops") / seconds / 1e9
        record = {**totals, **metrics, "lr": rate, "grad_norm": norm, "step_seconds": seconds}
        last = step + 1 == end
        if ((step + 1) % schedule.evaluate_every == 0 or last) and (held_out := task.evaluate()):
            record["held_out"] = held_out
        if world.leads:
            _append(out / METRICS, record)
            on_step(Progress(step + 1, schedule.steps, record))
        # Every process must save at the same step: with several of them, only the first one's clock would disagree.
        due = time.monotonic() - last_save > schedule.save_minutes * 60 and world.size == 1
        due |= world.size > 1 and (step + 1) % schedule.evaluate_every == 0
        if due or last:
            store.save(task.module, optimizer, totals)
            last_save = time.monotonic()
    return record


def make_optimizer(parameters: Mapping[str, Tensor], schedule: Schedule) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101) over named parameters; only matrices decay.

    Every group has the `rate` that the schedule's learning rate is multiplied by.
    """
    groups: dict[tuple[float, bool], list[Tensor]] = {}
    for name, p in parameters.items():
        groups.setdefault((schedule.rate_of(name), p.dim() >= 2), []).append(p)
    return torch.optim.AdamW(
        [
            {"params": members, "weight_decay": schedule.weight_decay if matrices else 0.0, "rate": rate}
            for (rate, matrices), members in groups.items()
        ],
        lr=schedule.learning_rate,
        betas=(0.9, 0.98),
        fused=not any(hasattr(p, "full_tensor") for p in parameters.values()),
    )


def train_adapter(
    model: Transformer,
    recipe: Recipe,
    training: Sequence[Conversation],
    held_out: Sequence[Conversation],
    out: Path,
    *,
    on_step: Callable[[Progress], None] = quiet,
    stop_at: int | None = None,
) -> dict[str, Any]:
    """Train the model's adapter in place, the base frozen; see `train`. Drafts are measured on `held_out`, if any."""
    return train(AdapterTask(model, recipe, training, held_out), recipe, out, on_step=on_step, stop_at=stop_at)


def _number(norm: Tensor) -> float:
    """The value of a gradient norm, sharded or not."""
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def _append(path: Path, record: dict[str, Any]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise TrainingError(f"can't write {path}: {error.strerror}; the last checkpoint is intact") from None
