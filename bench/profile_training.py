"""Where a training step's time goes: python bench/profile_training.py [RECIPE.toml]

Runs two steps to warm up and one under the profiler, without compiling, and prints the share of each kind of operation
and the GFLOP/s of the whole step.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from trifolium.checkpoint import open_checkpoint
from trifolium.train.adapt import accumulate_gradients
from trifolium.train.convert import fresh_adapter, load_data, load_for_training
from trifolium.train.data import BatchPlan
from trifolium.train.loop import token_counts
from trifolium.train.loss import Shortlist
from trifolium.train.recipe import Recipe

KINDS = {
    "matrix products": ("aten::mm", "aten::bmm", "aten::addmm"),
    "attention": ("aten::_scaled_dot_product_flash_attention_for_cpu",),
    "attention, backward": ("aten::_scaled_dot_product_flash_attention_for_cpu_backward",),
}


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1] / "recipes" / "smollm2-135m.toml")
    recipe = Recipe.load(path)
    checkpoint = open_checkpoint(recipe.base)
    data = load_data(recipe, path.parent, checkpoint)
    model = load_for_training(checkpoint)
    model.adapter = fresh_adapter(checkpoint, model, recipe)
    plan = BatchPlan(data.training, recipe.tokens_per_batch, recipe.seed)
    shortlist = Shortlist(token_counts(data.training, model.config.vocab_size), recipe.shortlist, recipe.negatives)
    for step in range(2):
        started = time.perf_counter()
        stats = accumulate_gradients(model, plan.batch(step), recipe, shortlist, step)
        seconds = time.perf_counter() - started
    print(f"{stats.flops / seconds / 1e9:.0f} GFLOP/s, {seconds:.1f} s, {stats.rows} rows scored")
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        accumulate_gradients(model, plan.batch(1), recipe, shortlist, 1)
    times: Counter[str] = Counter()
    for event in profiler.key_averages():
        kind = next((kind for kind, names in KINDS.items() if event.key in names), f"other: {event.key}")
        times[kind] += event.self_cpu_time_total
    total = sum(times.values())
    for kind, microseconds in times.most_common(10):
        print(f"{microseconds / total:6.1%}  {kind}")


if __name__ == "__main__":
    main()
