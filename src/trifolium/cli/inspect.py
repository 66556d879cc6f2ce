"""`trifolium inspect`: what a model is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..checkpoint.shelf import DEFAULT_MODEL, Shelf
from ..errors import CheckpointError, NotFoundError
from .fields import print_fields

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..config import ModelConfig

app = typer.Typer(add_completion=False)


@app.command(
    epilog="Examples: trifolium inspect smollm2-135m  |  trifolium inspect ./my-model --json  |  "
    "trifolium inspect qwen3.6-35b-a3b"
)
def inspect(
    model: str = typer.Argument(
        DEFAULT_MODEL,
        metavar="MODEL",
        help="A shelf name, a folder, a .gguf file, a hub id, or a name of sizes alone, such as qwen3.6-35b-a3b.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print JSON for scripts."),
) -> None:
    """What a model is made of: layers, shapes, parameters, memory and reads by dtype, tokenizer, template, adapter.

    The weights are not loaded; only headers, the norms (for the fingerprint) and the tokenizer are read. For a name
    of sizes alone, nothing is.
    """
    report = _find(model)
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)


def _find(model: str) -> dict[str, Any]:
    from ..checkpoint import open_checkpoint
    from ..checkpoint.geometry import geometries, geometry, nearest_geometries

    elsewhere = model in Shelf.default().entries or Path(model).expanduser().exists()
    if model in geometries() and not elsewhere:
        return {"name": model, "format": "sizes only", **_sizes(geometry(model))}
    try:
        return _report(open_checkpoint(model, skills="auto"))
    except NotFoundError as error:
        if elsewhere or "/" in model:
            raise
        raise NotFoundError(f"{error}; sizes alone are known of {', '.join(nearest_geometries(model))}") from None


def _sizes(config: ModelConfig) -> dict[str, Any]:
    """What follows from the config alone."""
    from ..checkpoint import expected_shapes
    from ..evaluate import geometry

    shapes = expected_shapes(config)
    return {
        "config": config.model_dump(mode="json", exclude={"mixers", "feed_forwards"}),
        "layers": [
            {"mixer": mixer, "feed_forward": feed_forward}
            for mixer, feed_forward in zip(config.mixers, config.feed_forwards, strict=True)
        ],
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "parameters": geometry.parameters(shapes),
        "active_parameters": geometry.active_parameters(config, shapes),
        "memory_bytes": {dtype: geometry.memory_bytes(shapes, dtype) for dtype in geometry.DTYPES},
        "pass_bytes": geometry.pass_table(config, shapes),
    }


def _report(checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        tokenizer, fault = checkpoint.tokenizer(), None
    except (CheckpointError, NotFoundError) as error:  # the weights can be inspected all the same
        tokenizer, fault = None, str(error)
    return {
        "name": checkpoint.name,
        "path": str(checkpoint.path),
        "format": checkpoint.format,
        "licence": checkpoint.licence,
        "fingerprint": checkpoint.fingerprint(),
        "skills": checkpoint.skills and checkpoint.skills.config.model_dump(mode="json"),
        **_sizes(checkpoint.config),
        "tokenizer": tokenizer
        and {
            "vocab_size": tokenizer.vocab_size,
            "eos": {str(token): tokenizer.decode([token]) for token in sorted(tokenizer.eos_ids)},
        },
        "tokenizer_error": fault,
        "template": tokenizer is not None and tokenizer.chat_template is not None,
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
    config, memory = report["config"], report["memory_bytes"]
    kinds: dict[str, list[int]] = {}
    for i, layer in enumerate(report["layers"]):
        kinds.setdefault(f"{layer['mixer']} + {layer['feed_forward']}", []).append(i)
    print_fields(
        {
            "model": report["name"],
            **{key: report[key] for key in ("path", "format", "licence", "fingerprint") if key in report},
            "family": config["family"],
            "layers": ", ".join(f"{len(layers)} x ({kind})" for kind, layers in kinds.items()),
            "hidden": f"{config['hidden_size']}, feed-forward {config['intermediate_size']}",
            "heads": f"{config['num_heads']} query, {config['num_kv_heads']} key/value, of {config['head_dim']}",
            **dict(_hybrid_fields(config)),
            "context": f"{config['max_positions']:,} positions, "
            f"rope {config['rope']['kind']}, theta {config['rope']['theta']:g}",
            "embeddings": "tied" if config["tie_embeddings"] else "untied",
            "parameters": f"{report['parameters']:,}, {report['active_parameters']:,} of them for one token",
            "memory": ", ".join(f"{count / 1e6:,.1f} MB {dtype}" for dtype, count in memory.items()),
            **(_file_fields(report) if "path" in report else {}),
        }
    )
    shapes = report["shapes"]
    print("\ntensors outside layers")
    print_fields({name: shape for name, shape in shapes.items() if "layers." not in name})
    for kind, layers in kinds.items():
        print(f"\ntensors of a layer: {kind} (layer {layers[0]} stands for {_layers(layers)})")
        print_fields({name: shape for name, shape in shapes.items() if f"layers.{layers[0]}." in name})
    if config["experts"]:
        _print_passes(report["pass_bytes"])


def _layers(layers: list[int]) -> str:
    shown = ", ".join(map(str, layers[:4]))
    return f"{shown} and so on, {len(layers)} in all" if len(layers) > 4 else f"{shown}"


def _hybrid_fields(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if net := config["delta_net"]:
        yield (
            "delta net",
            f"{net['key_heads']} key heads of {net['key_dim']}, {net['value_heads']} value heads of "
            f"{net['value_dim']}, {net['conv_width']} taps",
        )
    if experts := config["experts"]:
        shared = f", and a shared one of {experts['shared_size']}" if experts["shared_size"] else ""
        yield "experts", f"{experts['top_k']} of {experts['count']}, of size {experts['size']}{shared}"
    if preview := config["preview"]:
        yield "preview", f"mask token {preview['mask_token']}, blocks of {preview['block_size']}"


def _file_fields(report: Mapping[str, Any]) -> dict[str, object]:
    tokenizer, adapter = report["tokenizer"], report["adapter"]
    return {
        "tokenizer": f"{tokenizer['vocab_size']:,} tokens, eos {', '.join(tokenizer['eos'].values())}"
        if tokenizer
        else f"none: {report['tokenizer_error']}",
        "template": "present" if report["template"] else "absent",
        "skills": report["skills"] and f"rank {report['skills']['rank']}, merged into the weights",
        "adapter": adapter and f"{adapter['path']}{'' if adapter['fits'] else ' (does not fit)'}",
    }


def _print_passes(table: list[dict[str, Any]]) -> None:
    """GB of weights that a pass reads: one line for each coreset, one column for each number of rows."""
    rows = sorted({entry["rows"] for entry in table})
    for dtype in ("bfloat16", "int8"):
        print(f"\nGB of weights that a pass reads, {dtype} (uniform routing)")
        print(f"{'experts':<12}" + "".join(f"{f'{count} rows':>10}" for count in rows))
        for coreset in dict.fromkeys(entry["coreset"] for entry in table):
            line = [entry[dtype] / 1e9 for entry in table if entry["coreset"] == coreset]
            name = "all" if coreset is None else f"coreset {coreset}"
            print(f"{name:<12}" + "".join(f"{size:>10.2f}" for size in line))
