"""The ablation as a table and pictures, from the measurements on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ablation import BLOCK_SIZES, VARIANTS

Results = dict[str, list[dict[str, Any]]]
"""Measurements of every seed, by variant."""


def read(out: Path, seeds: Sequence[int]) -> Results:
    """Everything that `evaluate` has left in `out`."""
    return {
        v.name: [json.loads((out / v.name / f"seed-{seed}" / "measured.json").read_text()) for seed in seeds]
        for v in VARIANTS
    }


def cell(values: Sequence[float], digits: int = 2) -> str:
    """Mean of the seeds, and how far apart they are."""
    spread = (max(values) - min(values)) / 2
    return f"{mean(values):.{digits}f} ± {spread:.{digits}f}"


def table(results: Results) -> str:
    """Markdown: one table of losses and drift, one of tokens per pass."""
    sizes = [str(size) for size in BLOCK_SIZES]
    heads = " | ".join(f"block {s}" for s in sizes)
    rule = "| --- " * (len(sizes) + 3) + "|"
    lines = [
        "Held-out cross-entropy of fully masked blocks (nats a token), and what became of the commit path:",
        "",
        f"| variant | {heads} | AR loss, base {results['history'][0]['drift']['base_ar_loss']:.3f} | KL to base |",
        rule,
    ]
    for v in VARIANTS:
        runs = results[v.name]
        losses = " | ".join(cell([r["blocks"][s]["masked_loss"] for r in runs]) for s in sizes)
        ar, kl = cell([r["drift"]["ar_loss"] for r in runs], 3), cell([r["drift"]["kl"] for r in runs], 3)
        lines.append(f"| {v.title} | {losses} | {ar} | {kl} |")
    rule = "| --- " * (2 * len(sizes) + 1) + "|"
    heads = " | ".join(f"{mode} {s}" for mode in ("verified", "diffusion") for s in sizes)
    lines += ["", "Tokens per pass, greedy, by mode and block size:", "", f"| variant | {heads} |", rule]
    for v in VARIANTS:
        runs = results[v.name]
        cells = [cell([r["speed"][s][mode] for r in runs]) for mode in ("verified", "diffusion") for s in sizes]
        lines.append(f"| {v.title} | {' | '.join(cells)} |")
    equal = all(r["speed"][s]["equal_to_ar"] for runs in results.values() for r in runs for s in sizes)
    lines += ["", f"Every `verified` answer equalled `ar`, token for token: {'yes' if equal else 'NO'}."]
    return "\n".join(lines) + "\n"


MARKS = ("<!-- made by report: begin -->", "<!-- made by report: end -->")


def with_table(page: str, table: str) -> str:
    """The page with what stands between its marks replaced."""
    if any(page.count(mark) != 1 for mark in MARKS):
        raise SystemExit(f"the page needs each of these lines once: {', '.join(MARKS)}")
    before, rest = page.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return f"{before}{MARKS[0]}\n\n{table}\n{MARKS[1]}{after}"


def plot(results: Results, picture: Path) -> None:
    """Masked loss over the block size, and tokens per pass, a line a variant; bars show the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    panels: list[tuple[str, Callable[[dict[str, Any], str], float]]] = [
        ("Masked loss, nats", lambda r, s: r["blocks"][s]["masked_loss"]),
        ("Tokens per pass, verified", lambda r, s: r["speed"][s]["verified"]),
        ("Tokens per pass, diffusion", lambda r, s: r["speed"][s]["diffusion"]),
    ]
    for axis, (title, value) in zip(axes, panels, strict=True):
        for v in VARIANTS:
            by_size = [[value(r, str(s)) for r in results[v.name]] for s in BLOCK_SIZES]
            middle = [mean(x) for x in by_size]
            spread = [(max(x) - min(x)) / 2 for x in by_size]
            axis.errorbar(BLOCK_SIZES, middle, yerr=spread, fmt="o-", ms=4, lw=1.4, capsize=3, label=v.title)
        axis.set(xscale="log", xlabel="block size", title=title)
        axis.set_xticks(BLOCK_SIZES, [str(s) for s in BLOCK_SIZES])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(picture, dpi=130)
    plt.close(figure)


def plot_losses(out: Path, seed: int, picture: Path) -> None:
    """Training loss of the noisy rows, smoothed, a line a variant."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
    for v in VARIANTS:
        metrics = out / v.name / f"seed-{seed}" / "metrics.jsonl"
        losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
        smooth = [mean(losses[max(0, i - 7) : i + 1]) for i in range(len(losses))]
        axis.plot(range(1, len(smooth) + 1), smooth, lw=1.4, label=v.title)
    axis.set(xlabel="step", ylabel="cross-entropy of masked tokens", title="Training, mean of 8 steps")
    axis.legend(frameon=False, fontsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=130)
    plt.close(figure)
