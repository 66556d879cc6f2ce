"""What a pass costs as the context grows: one hybrid, prefilled in chunks to each length, then timed.

    python bench/context.py [--model nano] [--lengths 1024 8192 32768 131072] [--out bench/out]

Writes context.json, context.md and context.png. A longer context goes on from the shorter one's state, as a long
conversation would. `--model` may be a shelf name or folder; its position limit is raised to the longest context, since
time and memory are measured here, not quality.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from frames import frame, lines
from rich.console import Console
from rich.progress import Progress

from trifolium.api import native_adapter
from trifolium.checkpoint import open_checkpoint
from trifolium.engine.scheduler import CHUNK
from trifolium.evaluate.speed import peak_memory
from trifolium.model import MASK, RequestRows, RequestState, Rows, Transformer
from trifolium.model.state import AttentionState

DRAFTS, BRANCHES, BLOCK = 7, (1, 2, 4, 8), 8
"""The fused pass: one known token and its drafts, and a block of masks after each of these rows."""
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 8192, 32768, 131072])
    parser.add_argument(
        "--prefill-up-to", type=int, help="longer contexts get random cells instead: the same cost a pass, sooner"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    lengths = sorted(options.lengths)
    model = load(options.model, lengths[-1] + 64)
    state = model.new_state()
    rows: list[dict[str, Any]] = []
    with torch.inference_mode(), Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("prefilling", total=lengths[-1])
        for length in lengths:
            started = time.perf_counter()
            if options.prefill_up_to is not None and length > options.prefill_up_to:
                fill(state, length)
            while state.length < length:
                prefill(model, state, min(CHUNK, length - state.length))
                progress.update(task, completed=state.length)
            prefilled = time.perf_counter() - started
            rows.append({**measure(model, state), "context": length, "prefill_seconds": prefilled})
    options.out.mkdir(parents=True, exist_ok=True)
    report = {"model": options.model, "threads": torch.get_num_threads(), "rows": rows}
    (options.out / "context.json").write_text(json.dumps(report, indent=2) + "\n")
    (options.out / "context.md").write_text(markdown(rows))
    plot(rows, options.out / "context.png")
    print(markdown(rows))


def load(name: str, positions: int) -> Transformer:
    """The model in float32, with its own preview parameters, and room for `positions`."""
    checkpoint = open_checkpoint(name)
    model = Transformer(checkpoint.config.model_copy(update={"max_positions": positions}))
    model.adapter = native_adapter(checkpoint)
    model.fill(checkpoint.tensors(torch.float32), torch.float32)
    return model.requires_grad_(False)


def tokens_at(model: Transformer, start: int, count: int) -> list[int]:
    """Token ids that differ from position to position."""
    return [(31 * i * i + 7 * i) % model.config.vocab_size for i in range(start, start + count)]


def prefill(model: Transformer, state: RequestState, count: int) -> None:
    chunk = tokens_at(model, state.length, count)
    model.rows(Rows.build([RequestRows(state, chunk)], prefill=True))
    state.accept(count)


def fill(state: RequestState, length: int) -> None:
    """Random cells for all positions below `length`; the recurrent states stay as they are."""
    state.reserve(length)
    for layer in state.layers:
        if isinstance(layer, AttentionState):
            layer.keys[:, state.length : length].normal_()
            layer.values[:, state.length : length].normal_()
    state.length = length


def measure(model: Transformer, state: RequestState) -> dict[str, Any]:
    """Times of one plain and one fused pass in ms, and the bytes of each kind of state. Commits nothing."""
    drafts = tokens_at(model, state.length, 1 + DRAFTS)
    plain = RequestRows(state, drafts[:1])
    fused = RequestRows(state, drafts, [(n, [MASK] * BLOCK) for n in BRANCHES])
    times = {
        "plain_ms": median_ms(lambda: model.rows(Rows.build([plain], tile=model.tiled))),
        "fused_ms": median_ms(lambda: model.rows(Rows.build([fused], tile=model.tiled))),
    }
    attention = sum(layer.nbytes for layer in state.layers if isinstance(layer, AttentionState))
    return {
        **times,
        "attention_bytes": attention,
        "delta_net_bytes": state.nbytes - attention,
        "peak_memory_bytes": peak_memory(),
    }


def median_ms(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times)


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of the docs."""
    fused = 1 + DRAFTS + len(BRANCHES) * BLOCK
    lines = [
        f"| context | plain pass, 1 row, ms | fused pass, {fused} rows, ms | attention state, MB | delta-net state, MB "
        "| prefill from the length before, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for r in rows:
        lines.append(
            f"| {r['context']:,} | {r['plain_ms']:.1f} | {r['fused_ms']:.1f} | {r['attention_bytes'] / 1e6:.1f} | "
            f"{r['delta_net_bytes'] / 1e6:.2f} | {r['prefill_seconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Pass times and state sizes over the context, on logarithmic axes."""
    columns = {key: [(r["context"], r[key]) for r in rows] for key in rows[0]}
    sizes = {name: [(n, size / 1e6) for n, size in columns[f"{name}_bytes"]] for name in ("attention", "delta_net")}
    passes = {"plain pass": columns["plain_ms"], "fused pass": columns["fused_ms"]}
    states = {"attention layers": sizes["attention"], "delta-net layers": sizes["delta_net"]}
    with frame(path, 2) as (left, right):
        lines(left, passes, "Time of a pass, ms", "context, tokens", log="xy")
        lines(right, states, "State of a request, MB", "context, tokens", log="xy")


if __name__ == "__main__":
    main()
