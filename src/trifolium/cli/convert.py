"""`trifolium convert`: a fresh adapter for an autoregressive base, and the recipe that trains it."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(add_completion=False)

_RECIPE = """\
# Trains a block-diffusion adapter: trifolium train {name}
# Every key, its meaning and its default: trifolium train --help-recipe
base = "{base}"
data = ["{data}"]
out = "."
steps = {steps}
rank = {rank}
block_size = {block_size}
"""


@app.command(
    epilog="Examples: trifolium convert smollm2-135m --data answers.jsonl --out runs/mine  |  "
    "then: trifolium train runs/mine/recipe.toml"
)
def convert(
    base: str = typer.Argument(..., metavar="BASE", help="A shelf name, a folder, a .gguf file or a hub id."),
    out: Path = typer.Option(Path("runs/adapter"), help="Folder for the adapter and its recipe."),
    data: str = typer.Option(
        "data.jsonl", help="Training conversations, relative to the recipe (see trifolium generate-data)."
    ),
    steps: int = typer.Option(1000, min=1, help="Optimiser steps to write into the recipe."),
    rank: int = typer.Option(48, min=1, help="Rank of the low-rank deltas."),
    block_size: int = typer.Option(4, min=1, help="Block size that decoding takes by default."),
) -> None:
    """Make an adapter for an AR checkpoint: it changes nothing yet, and `trifolium train` teaches it to draft.

    The base's weights are neither changed nor copied: an adapter acts on preview rows only, so the base's own
    next-token distribution stays exactly what it was.
    """
    from ..errors import UsageError
    from ..train.convert import ADAPTER, convert_base
    from ..train.recipe import Recipe

    recipe_path = out / "recipe.toml"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"can't make the folder {out}: {error.strerror}") from None
    if recipe_path.exists():
        raise UsageError(f"{recipe_path} exists already; name another --out, or train it as it is")
    recipe = Recipe(base=base, data=(data,), out=".", steps=steps, rank=rank, alpha=rank, block_size=block_size)
    config = convert_base(base, recipe, out / ADAPTER)
    text = _RECIPE.format(
        name=recipe_path, base=base.replace("\\", "/"), data=data, steps=steps, rank=rank, block_size=block_size
    )
    recipe_path.write_text(text + f"alpha = {rank}.0\n", encoding="utf-8")
    typer.echo(f"adapter  {out / ADAPTER}  (for {config.base_name}, untrained)")
    typer.echo(f"next     trifolium train {recipe_path}")
