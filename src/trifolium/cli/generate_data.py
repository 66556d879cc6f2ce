"""`trifolium generate-data`: training conversations in a model's own words."""

from __future__ import annotations

from pathlib import Path

import typer

from ..dtypes import DTYPES

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Examples: trifolium generate-data --out data.jsonl --count 2000  |  "
    "trifolium generate-data --model ./my-model --openings openings.txt --out data.jsonl"
)
def generate_data(
    out: Path = typer.Option(..., help="JSON Lines file; an existing one is continued."),
    model: str = typer.Option("smollm2-135m", help="A shelf name, a folder, a .gguf file or a hub id."),
    count: int = typer.Option(100, min=1, help="Conversations that the file shall hold."),
    seed: int = typer.Option(0, min=0, help="Same seed, same conversations."),
    temperature: float = typer.Option(0.9, min=0.01, help="Of the questions; answers are greedy."),
    question_tokens: int = typer.Option(56, min=1, help="Longest question."),
    answer_tokens: int = typer.Option(160, min=1, help="Longest answer; longer ones are cut and marked incomplete."),
    batch: int = typer.Option(16, min=1, max=256, help="Requests that share a pass."),
    openings: Path = typer.Option(None, help="Text file: how questions begin, one a line (a built-in list without)."),
    dtype: str = typer.Option("auto", help=f"auto, {', '.join(DTYPES)}."),
) -> None:
    """Let a model write questions and answer them: the text that its adapter should learn to draft."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..api import load
    from ..errors import ConfigError, NotFoundError
    from ..train.generate import GenerationConfig, Written
    from ..train.generate import generate_data as run

    values: dict[str, object] = {
        "count": count, "seed": seed, "temperature": temperature, "question_tokens": question_tokens,
        "answer_tokens": answer_tokens, "batch": batch,
    }  # fmt: skip
    if openings is not None:
        if not openings.is_file():
            raise NotFoundError(f"no such file: {openings}")
        lines = tuple(line.strip() for line in openings.read_text(encoding="utf-8").splitlines() if line.strip())
        if not lines:
            raise ConfigError(f"{openings} holds no openings")
        values["openings"] = lines
    config = GenerationConfig.parse(values, "options")
    _check_writable(out)
    lm = load(model, dtype=dtype)  # type: ignore[arg-type]  # checked by load
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("writing", total=count)

        def on_line(written: Written) -> None:
            bar.update(task, completed=written.done)

        added = run(lm, config, out, on_line=on_line)
    typer.echo(f"{added} conversations added to {out}")


def _check_writable(path: Path) -> None:
    """Fail before the model is loaded, not after."""
    from ..errors import UsageError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror}") from None
