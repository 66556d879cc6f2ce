"""`trifolium train`: train an adapter, skills or a whole model by recipe, with progress, metrics and exact resuming."""

from __future__ import annotations

import json
from pathlib import Path

import typer

app = typer.Typer(add_completion=False)


@app.command(epilog="Examples: trifolium train recipes/smollm2-135m.toml  |  trifolium train my.toml --stop-at 200")
def train(
    recipe: Path = typer.Argument(None, metavar="RECIPE.toml", help="The recipe; paths in it are relative to it."),
    out: Path = typer.Option(None, help="Folder of the run (the recipe's own by default)."),
    start_from: Path = typer.Option(None, help="Adapter (or skills) to start from, with a fresh optimiser."),
    stop_at: int = typer.Option(None, min=1, help="Stop after this step; a later run goes on from there."),
    compile_layers: bool = typer.Option(
        False, "--compile/--no-compile", help="Compile the layers: faster after a minute or two; needs a C++ compiler."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the last metrics as JSON, nothing else."),
    help_recipe: bool = typer.Option(False, "--help-recipe", help="Print every recipe key with its default."),
) -> None:
    """Train what a recipe describes. Ctrl-C is safe: the run goes on from its last checkpoint.

    A recipe with `kind = "full"` trains every weight of a hybrid model and leaves a checkpoint folder; it also runs on
    many processes (torchrun --nproc-per-node N -m trifolium train RECIPE.toml). One with `kind = "skills"` trains
    low-rank deltas of the base's own weights, which `--skills` merges into them. Others train an adapter.

    Leaves adapter.safetensors, metrics.jsonl and curves.png in the run's folder. `plain_loss` is the loss of the
    block's rows alone, `loss` with the chain over them; `held_out` tells how many drafts of a block would be accepted.
    """
    from ..errors import UsageError
    from ..train.recipe import Recipe

    if help_recipe:
        from ..train.full import Full
        from ..train.recipe import Skills

        _print_recipe(Recipe)
        for other in (Full, Skills):
            typer.echo("")
            _print_recipe(other)
        return
    if recipe is None:
        raise UsageError("name a recipe (trifolium train RECIPE.toml), or make one with trifolium convert")
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ..train.convert import train_recipe
    from ..train.full import train_full
    from ..train.loop import Progress as Step
    from ..train.skills import train_skills
    from ..train.world import World

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=as_json or not console.is_terminal) as bar:
        task = bar.add_task("loading", total=None)

        def on_step(step: Step) -> None:
            r = step.record
            text = f"loss {r['loss']:.3f}  {r['step_seconds']:.1f} s a step"
            if "accepted" in r.get("held_out", {}):
                bar.print(f"step {step.step}: held-out drafts accepted {r['held_out']['accepted']:.3f} of a block")
            if "chat" in r.get("held_out", {}).get("skills", {}):
                chat = r["held_out"]["skills"]["chat"]
                bar.print(
                    f"step {step.step}: held-out loss {r['held_out']['loss']:.3f}, chat drifted by KL {chat['kl']:.4f}"
                )
            bar.update(task, completed=step.step, total=step.steps, description=text)

        kind = _kind(recipe)
        if kind == "skills":
            record = train_skills(
                recipe, out=out, start_from=start_from, on_step=on_step, stop_at=stop_at, compile_layers=compile_layers
            )
        elif kind == "full":
            if start_from is not None or compile_layers:
                raise UsageError(
                    "--start-from and --compile are for adapters and skills; a full recipe starts from its base"
                )
            record = train_full(recipe, out=out, on_step=on_step, stop_at=stop_at)
        else:
            record = train_recipe(
                recipe, out=out, start_from=start_from, on_step=on_step, stop_at=stop_at, compile_layers=compile_layers
            )
    if not World.join().leads:  # under torchrun one process speaks for all
        return
    if as_json:
        print(json.dumps(record))
    elif record:
        typer.echo(f"step {record['step']}, {record['seconds']:.0f} s of training, loss {record['loss']:.3f}")
    else:
        typer.echo("nothing left to do: the run has reached its last step")


def _kind(recipe: Path) -> str:
    """What a recipe file trains; faults in it are found when it is read as a whole."""
    import tomllib

    try:
        return str(tomllib.loads(recipe.read_text("utf-8")).get("kind", "adapter"))
    except (OSError, ValueError):
        return "adapter"


def _print_recipe(recipe: type) -> None:
    import inspect

    typer.echo(inspect.getdoc(recipe))
    typer.echo("")
    for name, field in recipe.model_fields.items():  # type: ignore[attr-defined]
        default = "required" if field.is_required() else field.default
        typer.echo(f"{name} = {default!r}" if default != "required" else f"{name}  (required)")
