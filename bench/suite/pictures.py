"""The report's pictures."""

from __future__ import annotations

from pathlib import Path

from frames import BLUE, GREY, bars, frame, lines

from .matrix import BY_NAME, WORKLOADS
from .results import Results


def title(name: str) -> str:
    """How a system is called."""
    return BY_NAME[name].title


def draw(results: Results, folder: Path) -> list[tuple[str, str]]:
    """Every picture that there are measurements for: (file name, what it shows), in order."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, text, picture in (
        ("bench-one.png", "One request at a time: tokens a second after the first token", one_request),
        ("bench-batch.png", "Many requests at once: tokens a second in total, and for one of them", batch),
        ("bench-context.png", "Growth with the context", contexts),
        ("bench-rows.png", "Growth of a pass with its rows", rows),
    ):
        if picture(results, folder / name):
            drawn.append((name, text))
    return drawn


def one_request(results: Results, path: Path) -> bool:
    """Decoding speed of every system, a panel a workload."""
    parts = [w for w in WORKLOADS if w.name != "prefix" and results.systems(1, w.name)]
    names = [name for name in BY_NAME if any(name in results.systems(1, w.name) for w in parts)]
    if not parts:
        return False
    with frame(path, len(parts), (4 + 2.6 * len(parts), 1 + 0.34 * len(names)), sharey=True) as axes:
        for axis, workload in zip(axes, parts, strict=True):
            cells = [results.cells.get((1, workload.name, name)) for name in names]
            values = [0.0 if cell is None else cell.median.get("decode_tok_s", 0.0) for cell in cells]
            colours = [BLUE if BY_NAME[name].ours else GREY for name in names]
            bars(axis, [title(name) for name in names], values, workload.title, form="%.0f", colours=colours)
            axis.set_xlabel("tok/s")
    return True


def batch(results: Results, path: Path) -> bool:
    """Total and single speed over the load, chat."""
    total: dict[str, list[tuple[float, float]]] = {}
    single: dict[str, list[tuple[float, float]]] = {}
    for load in sorted({load for load, part in results.places() if part == "chat"}):
        for name in results.systems(load, "chat"):
            median = results.cells[load, "chat", name].median
            total.setdefault(title(name), []).append((load, median["tok_s"]))
            if "decode_tok_s" in median:
                single.setdefault(title(name), []).append((load, median["decode_tok_s"]))
    total = {name: points for name, points in total.items() if len(points) > 1}
    if not total:
        return False
    with frame(path, 2) as (left, right):
        lines(left, total, "Chat, in total, tok/s", "requests at once", log="xy")
        lines(
            right,
            {n: single[n] for n in total if n in single},
            "Chat, one of them, tok/s",
            "requests at once",
            log="xy",
        )
    return True


def contexts(results: Results, path: Path) -> bool:
    """Time of a token and time to the first one."""
    found = {title(name): rows for name, rows in results.contexts.items()}
    if not found:
        return False
    with frame(path, 1, (6, 3.6)) as (axis,):
        points = {name: [(r["context"], r["ms_per_token"]) for r in rows] for name, rows in found.items()}
        lines(axis, points, "Decoding, ms a token", "context, tokens", log="x")
        axis.set_ylim(bottom=0)
    return True


def rows(results: Results, path: Path) -> bool:
    """Pass time by rows."""
    if not results.rows:
        return False
    forms = {"plain_ms": "commit rows", "fused_ms": "drafts and masks"}
    with frame(path, len(results.rows), (1 + 4.5 * len(results.rows), 3.6)) as axes:
        for axis, (name, found) in zip(axes, results.rows.items(), strict=True):
            series = {text: [(r["rows"], r[key]) for r in found if key in r] for key, text in forms.items()}
            lines(axis, {k: v for k, v in series.items() if v}, f"One pass, {name.split('-')[0]}, ms", "rows", log="x")
            axis.set_ylim(bottom=0)
    return True
