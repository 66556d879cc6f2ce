"""`trifolium generate-skills`: invented conversations that teach tools, extraction and decisions."""

from __future__ import annotations

import json
from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Examples: trifolium generate-skills --out skills.jsonl.gz  |  "
    "trifolium generate-skills --out some.jsonl --count 50 --seed 7"
)
def generate_skills(
    out: Path = typer.Option(..., help="JSON Lines file, packed if it ends in .gz; an old one is replaced."),
    count: int = typer.Option(12_000, min=1, help="Conversations to draw; repeats are left out."),
    seed: int = typer.Option(0, min=0, help="Equal seeds give equal files."),
) -> None:
    """Write conversations about invented tools and texts: calls, none, questions back, extraction, typed decisions.

    No model is needed. Prints what is in the file: lines by skill, tools, calls, repeats that were left out.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..train.lessons import LessonConfig, write_lessons

    config = LessonConfig.parse({"count": count, "seed": seed}, "options")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("writing", total=count)
        statistics = write_lessons(config, out, lambda done: bar.update(task, completed=done))
    typer.echo(json.dumps(statistics.as_dict(), indent=2))
