"""Make Clover in miniature: tokenizer, AR training, five ways to preview, measurements, report, the shipped model.

    python recipes/nano/make.py [STAGE ...] [--out runs/nano] [--seeds 1 2] [--quick]

Stages: pretrain, ablate, evaluate, report, ship; all of them by default. Each one continues where it stopped, and is
skipped when its result is there.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import measure
import report
import torch
from ablation import BLOCK_SIZES, SEEDS, VARIANTS, Variant
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from model import HERE, Data, load_data, load_weights, model_config, save_weights, toy
from trifolium.checkpoint import write_hf
from trifolium.config import ModelConfig
from trifolium.model import Transformer
from trifolium.train.autoregressive import PretrainTask
from trifolium.train.diffuse import DiffuseTask
from trifolium.train.initialise import initialise
from trifolium.train.loop import CHECKPOINT, Progress, Task, train
from trifolium.train.plot import plot_metrics
from trifolium.train.recipe import Pretrain, Schedule

CONSOLE = Console(stderr=True)
AR = "ar.safetensors"
MAX_LENGTH = 384


def run(task: Task, schedule: Schedule, out: Path, title: str) -> None:
    """Train with a progress bar on a terminal, or a line now and then in a log."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=CONSOLE, disable=not CONSOLE.is_terminal) as bars:
        bar = bars.add_task(title, total=schedule.steps)

        def on_step(progress: Progress) -> None:
            record = progress.record
            bars.update(bar, completed=progress.step, description=f"{title}  loss {record['loss']:.3f}")
            if "held_out" in record or (not CONSOLE.is_terminal and progress.step % 20 == 0):
                held_out = f"  held out {record['held_out']}" if "held_out" in record else ""
                speed = f"{record['step_seconds']:.1f} s a step"
                CONSOLE.print(f"{title} step {progress.step}: loss {record['loss']:.3f}, {speed}{held_out}")

        train(task, schedule, out, on_step=on_step)
    plot_metrics(out / "metrics.jsonl", out / "curves.png")


def pretrain(out: Path, config: ModelConfig, data: Data, quick: bool) -> None:
    """Random weights -> an AR model."""
    recipe = Pretrain.load(HERE / "pretrain.toml")
    if quick:
        recipe = recipe.model_copy(update={"steps": 3, "tokens_per_batch": 512, "held_out": 4})
    model = Transformer(config)
    initialise(model, recipe.seed)
    model.requires_grad_(True)
    run(PretrainTask(model, recipe, data.training, data.held_out), recipe, out / "pretrain", "AR training")
    save_weights(out / AR, model)


def ablate(out: Path, config: ModelConfig, data: Data, seeds: Sequence[int], quick: bool) -> None:
    """The AR model -> every variant, for every seed."""
    for seed in seeds:
        for variant in VARIANTS:
            folder = out / variant.name / f"seed-{seed}"
            if (folder / "model.safetensors").exists():
                continue
            model, recipe = variant.model(config, out / AR), variant.recipe(seed, quick)
            task = DiffuseTask(model, recipe, data.training, data.held_out)
            run(task, recipe, folder, f"{variant.name}, seed {seed}")
            save_weights(folder / "model.safetensors", model)
            (folder / CHECKPOINT).unlink()  # three times the size of the weights, and no longer needed


def evaluate(out: Path, config: ModelConfig, data: Data, seeds: Sequence[int], quick: bool) -> None:
    """Measure every run."""
    prompts, tokens, held_out = (1, 6, data.held_out[:4]) if quick else (6, 16, data.held_out[:48])
    base = load_weights(out / AR, Transformer(config)).requires_grad_(False)
    runs = [(variant, seed) for seed in seeds for variant in VARIANTS]
    with Bars(console=CONSOLE, disable=not CONSOLE.is_terminal) as bars:
        bar = bars.add_task("measuring", total=len(runs) * len(BLOCK_SIZES) * 2)
        for variant, seed in runs:
            folder = out / variant.name / f"seed-{seed}"
            if (folder / "measured.json").exists():
                bars.advance(bar, len(BLOCK_SIZES) * 2)
                continue
            model = load_weights(folder / "model.safetensors", variant.model(config, out / AR))
            model.requires_grad_(False)
            measured = {
                "drift": measure.drift(base, model, held_out),
                "blocks": measure.blocks(model, held_out, BLOCK_SIZES),
                "speed": measure.speed(model, data, BLOCK_SIZES, prompts, tokens, lambda: bars.advance(bar)),
            }
            if not CONSOLE.is_terminal:
                CONSOLE.print(f"{variant.name}, seed {seed}: {measured['speed']}")
            write_text(folder / "measured.json", json.dumps(measured, indent=2) + "\n")


def write_report(out: Path, seeds: Sequence[int], docs: Path | None) -> None:
    """Table and pictures in `out`; with `docs`, also into its nano.md and its folder of pictures."""
    results = report.read(out, seeds)
    table = report.table(results)
    write_text(out / "ablation.md", table)
    report.plot(results, out / "nano-ablation.png")
    report.plot_losses(out, seeds[0], out / "nano-losses.png")
    print(table)
    if docs is not None:
        page = docs / "nano.md"
        write_text(page, report.with_table(page.read_text("utf-8"), table))
        pictures = {"nano-ablation": "nano-ablation.png", "nano-losses": "nano-losses.png"}
        pictures |= {"nano-pretraining": "pretrain/curves.png"}
        (docs / "pictures").mkdir(exist_ok=True)
        for name, made in pictures.items():
            (docs / "pictures" / f"{name}.png").write_bytes((out / made).read_bytes())


def ship(out: Path, config: ModelConfig, seeds: Sequence[int], folder: Path) -> None:
    """The run whose drafts save most passes, as a checkpoint folder with its tokenizer.

    A clover_moe checkpoint says how its delta-net layers preview by its parameters alone, so the causal variant can't
    be one.
    """
    if folder.exists():
        return
    results = report.read(out, seeds)
    candidates = [(v, seed) for v in VARIANTS if not v.causal for seed in seeds]

    def saved(run: tuple[Variant, int]) -> float:
        found = results[run[0].name][list(seeds).index(run[1])]["speed"]
        return sum(found[str(size)]["verified"] for size in BLOCK_SIZES)

    variant, seed = max(candidates, key=saved)
    model = load_weights(out / variant.name / f"seed-{seed}" / "model.safetensors", variant.model(config, out / AR))
    write_hf(folder, model.config, ((name, p.detach().to(torch.bfloat16)) for name, p in model.named_parameters()))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(out / "tokenizer" / name, folder / name)
    shutil.copyfile(HERE / "card.md", folder / "README.md")
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    CONSOLE.print(f"{folder}: {variant.name}, seed {seed}, {size:.1f} MB")


def write_text(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


STAGES = ("pretrain", "ablate", "evaluate", "report", "ship")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=f"any of {', '.join(STAGES)}")
    parser.add_argument("--out", type=Path, default=Path("runs/nano"), help="folder of the run")
    parser.add_argument("--to", type=Path, help="folder for the shipped model (OUT/nano by default); must not exist")
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="only these: two processes with a seed and a core each share the work"
    )
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see that everything runs")
    parser.add_argument("--docs", type=Path, help="folder of nano.md, to put the report's table and pictures into")
    options = parser.parse_args()
    if unknown := set(options.stages) - set(STAGES):
        parser.error(f"no such stage: {', '.join(sorted(unknown))}; choose from {', '.join(STAGES)}")
    wanted = options.stages or STAGES
    out: Path = options.out
    config = toy(model_config()) if options.quick else model_config()
    seeds = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    data = load_data(out / "tokenizer", config.vocab_size, MAX_LENGTH, limit=300 if options.quick else None)
    if "pretrain" in wanted and not (out / AR).exists():
        pretrain(out, config, data, options.quick)
    if "ablate" in wanted:
        ablate(out, config, data, seeds, options.quick)
    if "evaluate" in wanted:
        evaluate(out, config, data, seeds, options.quick)
    if "report" in wanted:
        write_report(out, seeds, options.docs)
    if "ship" in wanted:
        ship(out, config, seeds, options.to or out / "nano")


if __name__ == "__main__":
    main()
