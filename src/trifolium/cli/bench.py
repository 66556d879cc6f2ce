"""`trifolium bench`: the decoding modes against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ..dtypes import DTYPES
from . import options as o

if TYPE_CHECKING:
    from ..api import LM

app = typer.Typer(add_completion=False)

_DTYPES = ", ".join(DTYPES)


@app.command(
    epilog="Examples: trifolium bench --max-tokens 64  |  trifolium bench --prompts mine.jsonl --json  |  "
    "trifolium bench --dtypes all --limit 8"
)
def bench(
    prompts: Annotated[
        Path | None, typer.Option(help="JSONL, an object with `messages` a line. [default: a built-in held-out set]")
    ] = None,
    modes: Annotated[
        str | None, typer.Option(help="Which modes, with commas. [default: ar,verified,diffusion as the model allows]")
    ] = None,
    max_tokens: o.MaxTokens = 128,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many prompts.")] = None,
    model: o.Model = o.DEFAULT,
    adapter: o.Adapter = "auto",
    skills: o.Skills = "auto",
    drafts: o.Drafts = "both",
    block_size: o.BlockSize = None,
    rows: o.RowBudget = o.ROWS,
    free_rows: o.FreeRows = False,
    threshold: o.Threshold = 0.9,
    dtype: o.DType = "auto",
    dtypes: Annotated[
        str | None,
        typer.Option(help=f"Measure numbers instead of speed: these dtypes against float32, or `all`: {_DTYPES}."),
    ] = None,
    as_json: o.AsJson = False,
) -> None:
    """The same prompts in every mode, greedy, in one run: tokens per pass, speed, memory; does verified equal ar?

    Modes take turns on every prompt and are warmed up first. Memory is the process's peak in each mode's answers.
    With --dtypes: how near their predictions and answers are to float32's; float32's own answers are the text.
    """
    if dtypes is not None:
        _numbers(prompts, limit, model, adapter, skills, dtypes, max_tokens, as_json)
        return
    from ..api import split_options
    from ..evaluate import speed

    settings = {
        "drafts": drafts,
        "block_size": block_size,
        "threshold": threshold,
        "free_rows": free_rows,
        "max_tokens": max_tokens,
    }
    split_options(settings)
    conversations = speed.read_prompts(prompts)[:limit]
    lm = o.load_model(model, adapter, dtype, rows, skills=skills)
    chosen = _modes(modes, lm)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("answers", total=len(conversations) * len(chosen))
        totals = speed.compare(lm, conversations, chosen, lambda: progress.advance(task), **settings)
    for text in {note for total in totals.values() for note in total.results[0].notes}:
        o.note(text)
    report = speed.report(
        lm,
        totals,
        adapter=None if lm.model.adapter is None else lm.model.adapter.config.base_name,
        prompts=len(conversations),
        max_tokens=max_tokens,
        rows=rows,
    )
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)


def _numbers(
    prompts: Path | None,
    limit: int | None,
    model: str,
    adapter: str,
    skills: str,
    dtypes: str,
    max_tokens: int,
    as_json: bool,
) -> None:
    from ..evaluate import fidelity

    chosen = fidelity.dtypes_to_compare(None if dtypes == "all" else dtypes)
    conversations = fidelity.read_conversations(prompts, limit)
    found = fidelity.compare(
        lambda dtype: o.load_model(model, adapter, dtype, skills=skills), chosen, conversations, max_tokens=max_tokens
    )
    if as_json:
        print(json.dumps({"model": model, "dtypes": [each.as_dict() for each in found]}, indent=2))
    else:
        print(fidelity.markdown(found), end="")


def _modes(asked: str | None, lm: LM) -> list[str]:
    """The modes to run; without an adapter, diffusion only if it was asked for (and then it is refused)."""
    if asked is not None:
        return [mode.strip() for mode in asked.split(",")]
    if lm.model.adapter is None:
        o.note("this model has no adapter: diffusion is left out")
        return ["ar", "verified"]
    return ["ar", "verified", "diffusion"]


def _print(report: dict[str, Any]) -> None:
    title = f"{report['model']}, {report['dtype']}, {report['prompts']} prompts, {report['max_tokens']} tokens at most"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("mode")
    for heading in ("tokens", "passes", "tokens/pass", "tokens/s", "prompt s", "peak MB", "equal to ar"):
        table.add_column(heading, justify="right")
    for mode, total in report["modes"].items():
        equal = total.get("equal_to_ar")
        table.add_row(
            mode,
            str(total["tokens"]),
            str(total["passes"]),
            f"{total['tokens_per_pass']:.3f}",
            f"{total['tokens_per_second']:.1f}",
            f"{total['prompt_seconds']:.2f}",
            f"{total['peak_memory_mb']:.0f}",
            "" if equal is None else f"{equal:.1%}",
        )
    console = Console(highlight=False)
    console.print(table)
    for mode, total in report["modes"].items():
        if total["experts_per_pass"]:
            console.print(
                f"{mode}: {total['experts_per_pass']:.1f} distinct experts read a layer and pass", markup=False
            )
        if any(total["accepted_by"].values()):
            sources = ", ".join(f"{count} {name}" for name, count in total["accepted_by"].items())
            console.print(f"{mode}: accepted drafts {sources}", markup=False)
