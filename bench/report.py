"""The measurements of the README: ar, verified and diffusion on the built-in held-out prompts, in int8 and float32.

    python bench/report.py [--limit N] [--max-tokens N] [--out bench/out]

Writes report.json, report.md and report.png. All modes of a dtype take turns in one process; nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from frames import bars, frame
from rich.console import Console
from rich.progress import Progress

import trifolium
from trifolium.evaluate.speed import compare, read_prompts, report

RUNS = [
    # dtype, drafts of verified, modes
    ("int4", "preview", ("ar", "verified", "diffusion")),
    ("int4", "both", ("ar", "verified")),
    ("int4", "ngram", ("ar", "verified")),
    ("int8", "both", ("ar", "verified")),
    ("float32", "preview", ("ar", "verified")),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=32, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest answer")
    parser.add_argument("--threshold", type=float, default=0.9, help="of diffusion")
    parser.add_argument("--adapter", default="auto")
    parser.add_argument("--runs", help="only these, as dtype:drafts with commas, e.g. int4:preview,float32:preview")
    parser.add_argument("--free-rows", action="store_true", help="verified takes all rows that may save a pass")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    prompts = read_prompts(None)[: options.limit]
    wanted = options.runs.split(",") if options.runs else [f"{dtype}:{drafts}" for dtype, drafts, _ in RUNS]
    runs = [run for run in RUNS if f"{run[0]}:{run[1]}" in wanted]
    rows: list[dict[str, Any]] = []
    with Progress(console=Console(stderr=True)) as progress:
        total = len(prompts) * sum(len(modes) for _, _, modes in runs)
        task = progress.add_task("measuring", total=total)
        for dtype, drafts, modes in runs:
            adapter = options.adapter if options.adapter == "auto" else Path(options.adapter)
            lm = trifolium.load(dtype=dtype, adapter=adapter)
            totals = compare(
                lm, prompts, modes, progress=lambda: progress.advance(task), drafts=drafts,
                max_tokens=options.max_tokens, threshold=options.threshold, free_rows=options.free_rows,
            )  # fmt: skip
            found = report(lm, totals)["modes"]
            for mode, values in found.items():
                if mode == "ar" and any(row["mode"] == "ar" and row["dtype"] == dtype for row in rows):
                    continue  # measured again only as the partner of its run
                speed = values["tokens_per_second"] / found["ar"]["tokens_per_second"]
                rows.append({**values, "dtype": dtype, "speed_against_ar": speed})
            del lm
    machine = {
        "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads(),
        "prompts": len(prompts), "max_tokens": options.max_tokens,
    }  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.json").write_text(json.dumps({"machine": machine, "rows": rows}, indent=2) + "\n")
    (options.out / "report.md").write_text(markdown(machine, rows))
    plot(rows, options.out / "report.png")
    print((options.out / "report.md").read_text())


def name_of(row: dict[str, Any]) -> str:
    """How a row is called in tables and plots."""
    return f"{row['mode']}, {row['drafts']} drafts" if row["mode"] == "verified" else row["mode"]


def markdown(machine: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The table of the README."""
    lines = [
        f"{machine['prompts']} held-out prompts, greedy, at most {machine['max_tokens']} tokens, one at a time; "
        f"{machine['cores']} {machine['capability']} cores, torch {machine['torch']}.",
        "",
        "| products | mode | tokens per pass | tok/s | speed against ar | peak memory, MB | equal to ar |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        equal = f"{row['equal_to_ar']:.0%}" if "equal_to_ar" in row else ""
        lines.append(
            f"| {row['dtype']} | {name_of(row)} | {row['tokens_per_pass']:.2f} | {row['tokens_per_second']:.1f} | "
            f"{row['speed_against_ar']:.2f} | {row['peak_memory_mb']:.0f} | {equal} |"
        )
    return "\n".join(lines) + "\n"


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Tokens per pass and speed as bars."""
    names = [f"{row['dtype']}: {name_of(row)}" for row in rows]
    titles = {"tokens_per_pass": "Tokens per pass", "speed_against_ar": "Speed against ar"}
    with frame(path, 2, sharey=True) as axes:
        for axis, (key, title) in zip(axes, titles.items(), strict=True):
            bars(axis, names, [row[key] for row in rows], title, reference=1.0)


if __name__ == "__main__":
    main()
