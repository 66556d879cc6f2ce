"""`trifolium inspect`: what a model is made of."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from ..checkpoint.shelf import DEFAULT_MODEL, Shelf

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint

app = typer.Typer(add_completion=False)


@app.command(epilog="Examples: trifolium inspect smollm2-135m  |  trifolium inspect ./my-model --json")
def inspect(
    model: str = typer.Argument(
        DEFAULT_MODEL, metavar="MODEL", help="A shelf name, a folder, a .gguf file or a hub id."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON for scripts."),
) -> None:
    """What a model is made of: layers, shapes, parameters, memory by dtype, tokenizer, template, adapter.

    The weights are not loaded; only headers, the norms (for the fingerprint) and the tokenizer are read.
    """
    from ..checkpoint import open_checkpoint

    report = _report(open_checkpoint(model))
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)


def _report(checkpoint: Checkpoint) -> dict[str, Any]:
    from ..checkpoint import expected_shapes

    config = checkpoint.config
    shapes = expected_shapes(config)
    parameters = sum(prod(shape) for shape in shapes.values())
    matrices = sum(prod(shape) for shape in shapes.values() if len(shape) == 2)
    rows = sum(shape[0] for shape in shapes.values() if len(shape) == 2)
    tokenizer = checkpoint.tokenizer()
    return {
        "name": checkpoint.name,
        "path": str(checkpoint.path),
        "format": checkpoint.format,
        "licence": checkpoint.licence,
        "fingerprint": checkpoint.fingerprint(),
        "config": config.model_dump(mode="json", exclude={"mixers", "feed_forwards"}),
        "layers": [
            {"mixer": mixer, "feed_forward": feed_forward}
            for mixer, feed_forward in zip(config.mixers, config.feed_forwards, strict=True)
        ],
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "parameters": parameters,
        "memory_bytes": {
            "float32": 4 * parameters,
            "bfloat16": 2 * parameters,
            # One byte a weight and one float32 scale an output row; vectors stay float32.
            "int8": matrices + 4 * rows + 4 * (parameters - matrices),
        },
        "tokenizer": {
            "vocab_size": tokenizer.vocab_size,
            "eos": {str(token): tokenizer.decode([token]) for token in sorted(tokenizer.eos_ids)},
        },
        "template": tokenizer.chat_template is not None,
        "adapter": _adapter(checkpoint),
    }


def _adapter(checkpoint: Checkpoint) -> dict[str, Any] | None:
    """The adapter that ships for a shelf model, whichever way the model was named here."""
    from ..checkpoint import read_adapter_config

    shelf = Shelf.default()
    path: Path | None = shelf.adapter_path(checkpoint.name) if checkpoint.name in shelf.entries else None
    if path is None:
        return None
    adapter = read_adapter_config(path)
    return {
        "path": str(path),
        "fits": adapter.base_fingerprint == checkpoint.fingerprint(),
        **adapter.model_dump(mode="json"),
    }


def _print(report: dict[str, Any]) -> None:
    console = Console(soft_wrap=True, highlight=False)
    config, memory = report["config"], report["memory_bytes"]
    kinds = {f"{layer['mixer']} + {layer['feed_forward']}" for layer in report["layers"]}
    rope = {key: value for key, value in config["rope"].items() if value is not None}
    tokenizer, adapter = report["tokenizer"], report["adapter"]
    head = Table(box=None, show_header=False, pad_edge=False)
    for name, value in {
        "model": report["name"],
        "path": report["path"],
        "format": report["format"],
        "licence": report["licence"] or "unknown",
        "fingerprint": report["fingerprint"],
        "family": config["family"],
        "layers": f"{len(report['layers'])} x ({', '.join(sorted(kinds))})",
        "hidden": f"{config['hidden_size']}, feed-forward {config['intermediate_size']}",
        "heads": f"{config['num_heads']} query, {config['num_kv_heads']} key/value, of {config['head_dim']}",
        "context": f"{config['max_positions']:,} positions, rope {rope.pop('kind')}, theta {rope.pop('theta'):g}",
        "embeddings": "tied" if config["tie_embeddings"] else "untied",
        "parameters": f"{report['parameters']:,}",
        "memory": ", ".join(f"{count / 1e6:,.1f} MB {dtype}" for dtype, count in memory.items()),
        "tokenizer": f"{tokenizer['vocab_size']:,} tokens, eos {', '.join(tokenizer['eos'].values())}",
        "template": "present" if report["template"] else "absent",
        "adapter": "none" if adapter is None else f"{adapter['path']}{'' if adapter['fits'] else ' (does not fit)'}",
    }.items():
        head.add_row(name, value)
    console.print(head, markup=False)
    shapes = Table(box=None, pad_edge=False, title="tensors (layer 0 stands for all)", title_justify="left")
    shapes.add_column("name")
    shapes.add_column("shape")
    for name, shape in report["shapes"].items():
        if not name.startswith("layers.") or name.startswith("layers.0."):
            shapes.add_row(name, str(shape))
    console.print(shapes, markup=False)
