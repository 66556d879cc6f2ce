"""`trifolium models`: the shelf."""

from __future__ import annotations

import json
import os
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from ..checkpoint.shelf import DEFAULT_MODEL, Shelf, ShelfEntry
from ..errors import CorruptFileError, NotFoundError
from .fields import print_fields

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help=(
        "List, fetch, show and remove the models on the shelf.\n\n"
        "Models are kept in $TRIFOLIUM_CACHE, or trifolium/ in $XDG_CACHE_HOME or ~/.cache, and need no network "
        "once they are there. Weights that were prepared for the CPU lie beside them; $TRIFOLIUM_WEIGHTS_GB bounds "
        "what they take (default 16, 0 for none)."
    ),
)

_JSON = typer.Option(False, "--json", help="Print JSON for scripts.")
_NAME = typer.Argument(..., metavar="NAME", help="A shelf name, e.g. smollm2-135m (see `trifolium models list`).")
_NAME_OR_DEFAULT = typer.Argument(DEFAULT_MODEL, metavar="NAME", help="A shelf name.")


@app.command("list", epilog="Example: trifolium models list --json")
def list_models(as_json: bool = _JSON) -> None:
    """Names, sizes, licences, and which of them are here."""
    shelf = Shelf.default()
    rows = [_row(shelf, entry) for _, entry in sorted(shelf.entries.items())]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "size", "licence", "here", "description"):
        table.add_column(heading, no_wrap=heading == "name", justify="right" if heading == "size" else "left")
    for row in rows:
        here = "yes" if row["installed"] else "no"
        table.add_row(row["name"], _size(row["bytes"]), row["licence"], here, row["description"])
    Console().print(table)


@app.command(epilog="Examples: trifolium models pull  |  trifolium models pull smollm2-135m --verify")
def pull(
    name: str = _NAME_OR_DEFAULT,
    verify: bool = typer.Option(False, "--verify", help="Hash every file of a model that is here already."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress; only the path."),
) -> None:
    """Fetch a model and print its path. A model that is here and undamaged is not fetched again."""
    print(Shelf.default().pull(name, progress=not quiet, verify=verify))


@app.command(
    epilog="Examples: trifolium models show smollm2-135m --json  |  trifolium models show smollm2-135m --verify"
)
def show(
    name: str = _NAME_OR_DEFAULT,
    as_json: bool = _JSON,
    verify: bool = typer.Option(False, "--verify", help="Hash every file; fails when one is damaged."),
) -> None:
    """Path, source, licence, sha256 and size of a model; what can be known before it is pulled, if it isn't here."""
    shelf = Shelf.default()
    row = _row(shelf, shelf.find(name))
    if verify:
        if not row["installed"]:
            raise NotFoundError(f"{name} is not here, or damaged; run `trifolium models pull {name}`")
        if not shelf.verify(name):
            raise CorruptFileError(f"{row['path']} is damaged; run `trifolium models pull {name} --verify`")
        row["verified"] = True
    if as_json:
        print(json.dumps(row, indent=2))
        return
    print_fields(
        {
            **row,
            "installed": "yes" if row["installed"] else "no",
            "sources": ", ".join(row["sources"]),
            "bytes": f"{row['bytes']:,} ({_size(row['bytes'])})",
        }
    )


@app.command(epilog="Example: trifolium models remove smollm2-135m")
def remove(name: str = _NAME) -> None:
    """Delete a model from the cache, together with unfinished downloads and prepared weights of it."""
    from ..checkpoint.prepared import PreparedWeights

    shelf = Shelf.default()
    removed = shelf.remove(name)
    if fingerprint := shelf.find(name).fingerprint:
        PreparedWeights.default().clear(fingerprint)
    print(f"{name} is removed" if removed else f"{name} was not here")


@app.command(epilog="Example: trifolium models clean")
def clean() -> None:
    """Delete all prepared weights from the cache; they are made again when they are needed. Models stay."""
    from ..checkpoint.prepared import PreparedWeights

    print(f"{_size(PreparedWeights.default().clear())} of prepared weights are deleted")


def _row(shelf: Shelf, entry: ShelfEntry) -> dict[str, Any]:
    """What list and show print: of the copy that is here, or of the source that would be tried first."""
    here = shelf.installed(entry.name)
    path = shelf.installed_path(entry.name)
    first = entry.sources[0]
    adapter, skills = shelf.adapter_path(entry.name), shelf.skills_path(entry.name)
    return {
        "name": entry.name,
        "title": entry.title,
        "description": entry.description,
        "installed": here is not None,
        "path": None if path is None else os.fspath(path),
        "source": here.source if here else str(first),
        "sources": [str(source) for source in entry.sources],
        "licence": entry.licence,
        "sha256": here.sha256 if here else getattr(first, "sha256", None),
        "bytes": here.bytes if here else first.bytes,
        "adapter": None if adapter is None else os.fspath(adapter),
        "skills": None if skills is None else os.fspath(skills),
    }


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
