"""The report as Markdown and JSON. What people wrote about the figures stands in notes/*.md and is taken in whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trifolium.files import replacing

from . import agents
from .matrix import BY_NAME, WORKLOADS
from .pictures import draw, title
from .results import Results
from .targets import TARGETS

NOTES = Path(__file__).parent.parent / "notes"
OUT = Path(__file__).parent.parent / "out"

COLUMNS = (
    ("tok_s", "tok/s, whole", "{:.1f}"),
    ("decode_tok_s", "tok/s, decoding", "{:.1f}"),
    ("tokens_per_pass", "tokens per pass", "{:.2f}"),
    ("passes_s", "passes/s", "{:.1f}"),
    ("ttft_ms", "first token, ms", "{:.0f}"),
    ("p50_ms", "p50, ms a token", "{:.1f}"),
    ("p99_ms", "p99", "{:.1f}"),
    ("peak_mb", "peak memory, MB", "{:.0f}"),
    ("joules_per_token", "J a token", "{:.2f}"),
)


def write(results: Results, folder: Path, pictures: Path, notes: Path = NOTES) -> Path:
    """benchmarks.md and benchmarks.json in `folder`; returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = draw(results, pictures)
    relative = pictures.relative_to(folder).as_posix()
    page = folder / "benchmarks.md"
    _replace(folder / "benchmarks.json", json.dumps(as_dict(results), indent=1) + "\n")
    asked = agents.markdown(agents.collect(OUT, folder))
    _replace(page, markdown(results, [(f"{relative}/{name}", text) for name, text in drawn], notes, asked))
    return page


def _replace(path: Path, text: str) -> None:
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def as_dict(results: Results) -> dict[str, Any]:
    """All figures, without the texts."""
    cells = [
        {"load": load, "workload": part, "system": system, **measured.median, "rounds": len(measured.rounds),
         "tok_s_spread": measured.spread("tok_s"), "tok_s_rounds": [n["tok_s"] for n in measured.rounds.values()],
         "agreement": results.agreement(load, part, system),
         "against_llamacpp": results.ratio(load, part, system, "llamacpp", "tok_s"),
         "decode_against_llamacpp": results.ratio(load, part, system, "llamacpp", "decode_tok_s")}
        for (load, part, system), measured in results.cells.items()
    ]  # fmt: skip
    targets = []
    for target in TARGETS:
        finding = target.measure(results)
        targets.append(
            {"target": target.title, "wanted": target.wish, "value": finding.value, "met": target.met(finding)}
        )
    return {
        "identity": results.identity, "sessions": results.sessions, "facts": results.facts, "targets": targets,
        "cells": cells, "context": results.contexts, "prefix_ttft_ms": results.prefixes, "rows": results.rows,
        "overhead": results.overheads, "faults": results.faults,
    }  # fmt: skip


def markdown(results: Results, pictures: Sequence[tuple[str, str]], notes: Path = NOTES, asked: str = "") -> str:
    """The page; `asked`: its section on what agents ask for."""
    parts = [
        "# Benchmarks",
        "Made by `python bench/peers.py --docs docs` (part of `make bench`); the figures are in "
        "[benchmarks.json](benchmarks.json), the prose in `bench/notes`.",
        note(notes, "intro"),
        machine(results),
        "## Targets",
        targets(results),
        *[f"**{t.title}.** {text}" for t in TARGETS if (text := note(notes, t.slug))],
        *speed(results, pictures, notes),
        growth(results, pictures, notes),
        asked,
        "## Systems",
        systems(results),
        note(notes, "systems"),
        faults(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def note(folder: Path, slug: str) -> str:
    """The prose of a file of notes, or nothing."""
    path = folder / f"{slug}.md"
    return path.read_text("utf-8").strip() if path.exists() else ""


def machine(results: Results) -> str:
    """Where and when."""
    lines = []
    for facts in results.sessions:
        lines.append(
            f"- {facts['date']}: {facts['cpu']}, {facts['cores']} cores ({', '.join(facts['flags'])}), "
            f"{facts['memory_gb']} GB, {facts['system']}, Python {facts['python']}, {facts['threads']} threads a system"
            + (f", load average {facts['load_average'][0]:.2f} before" if facts["load_average"] else "")
        )
    identity = results.identity
    head = f"Model: `{identity['model']}` ({identity['fingerprint'][:12]}); Trifolium at commit {identity['commit']}."
    return "\n".join([head, "", *lines])


def targets(results: Results) -> str:
    """The table of targets."""
    lines = ["| target | wanted | measured | met | besides |", "| --- | --- | --- | --- | --- |"]
    for target in TARGETS:
        finding = target.measure(results)
        met = {None: "", True: "yes", False: "**no**"}[target.met(finding)]
        value = "not measured" if finding.value is None else target.written(finding.value)
        lines.append(f"| {target.title} | {target.wish} | {value} | {met} | {finding.besides} |")
    return "\n".join(lines)


def speed(results: Results, pictures: Sequence[tuple[str, str]], notes: Path) -> list[str]:
    """A section a load, a table a workload."""
    parts: list[str] = []
    titles = {w.name: w for w in WORKLOADS}
    seen: set[int] = set()
    for load, part in results.places():
        if part == "prefix":
            continue
        if load not in seen:
            parts.append("## One request at a time" if load == 1 else f"## {load} requests at once")
            if load == 1:
                parts += [note(notes, "reading"), *_shown(pictures, "one"), *_shown(pictures, "batch")]
        seen.add(load)
        head = titles[part].title.capitalize()
        parts += [f"### {head}" + (f", {load} at once" if load > 1 else ""), table(results, load, part)]
        if part == "extract" and (share := results.copied(load, part)) is not None:
            parts.append(f"In the middle answer, {share:.0%} of all runs of four words stand in the prompt.")
    return parts


def _shown(pictures: Sequence[tuple[str, str]], name: str) -> list[str]:
    return [f"![{text}]({path})" for path, text in pictures if path.endswith(f"bench-{name}.png")]


def table(results: Results, load: int, part: str) -> str:
    """All systems at one place; columns that nobody has are left out."""
    names = results.systems(load, part)
    medians = {name: results.cells[load, part, name].median for name in names}
    columns = [column for column in COLUMNS if any(column[0] in median for median in medians.values())]
    heads = [
        "system",
        *(head for _, head, _ in columns),
        "x llama.cpp, whole",
        "decoding",
        "texts equal to ar",
        "rounds, spread",
    ]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for name in names:
        measured = results.cells[load, part, name]
        cells = [form.format(medians[name][key]) if key in medians[name] else "" for key, _, form in columns]
        for key in ("tok_s", "decode_tok_s"):
            ratio = results.ratio(load, part, name, "llamacpp", key)
            cells.append("" if ratio is None else f"{ratio:.2f}")
        found = results.agreement(load, part, name)
        cells.append("" if found is None else f"{found[1]:.0%} ({found[2]:.0%} of the text)")
        cells.append(f"{len(measured.rounds)}, {measured.spread('tok_s'):.0%}")
        lines.append(f"| {title(name)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def growth(results: Results, pictures: Sequence[tuple[str, str]], notes: Path) -> str:
    """Context, rows, overhead and prefix hits."""
    parts: list[str] = []
    if results.contexts:
        lengths = sorted({int(r["context"]) for rows in results.contexts.values() for r in rows})
        lines = [f"| system | {' | '.join(f'{n:,}' for n in lengths)} |", "| --- " * (len(lengths) + 1) + "|"]
        for name, rows in results.contexts.items():
            by = {int(r["context"]): r for r in rows}
            cells = [
                f"{by[n]['ms_per_token']:.1f} ({by[n]['ms_per_delivery']:.1f})" if n in by else "" for n in lengths
            ]
            lines.append(f"| {title(name)} | {' | '.join(cells)} |")
        parts += ["## Growth with the context", "Milliseconds a token (and a pass) after so many tokens:"]
        parts += ["\n".join(lines), *_shown(pictures, "context"), note(notes, "context")]
    for name, rows in results.rows.items():
        heads = ["rows", *(f"{int(r['rows'])}" for r in rows)]
        lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
        for key, text in (("plain_ms", "commit rows alone"), ("fused_ms", "drafts, and blocks of masks")):
            if any(key in r for r in rows):
                lines.append(f"| {text} | {' | '.join(f'{r[key]:.1f}' if key in r else '' for r in rows)} |")
        parts += [f"## A pass by its rows, {name.split('-')[0]}, ms", "\n".join(lines)]
    if results.rows:
        parts += [*_shown(pictures, "rows"), note(notes, "pass")]
    if results.overheads:
        shares = ("runner", "proposer", "scheduler")
        lines = [
            "| system | requests | ms a step | the model's pass | proposals | choosing the batch | all else |",
            "| --- " * 7 + "|",
        ]
        for name, found in results.overheads.items():
            cells = [f"{found[f'{share}_share']:.1%}" if f"{share}_share" in found else "" for share in shares]
            cells.append(f"{1 - sum(found.get(f'{share}_share', 0) for share in shares):.1%}")
            lines.append(f"| {title(name)} | {found['requests']} | {found['ms_per_step']:.1f} | {' | '.join(cells)} |")
        parts += ["## Where a step's time goes", "\n".join(lines)]
    if results.prefixes:
        count = max(len(times) for times in results.prefixes.values())
        lines = [
            f"| system | cold | {' | '.join(f'question {i}' for i in range(2, count + 1))} |",
            "| --- " * (count + 1) + "|",
        ]
        lines += [
            f"| {title(name)} | {' | '.join(f'{t:.0f}' for t in times)} |" for name, times in results.prefixes.items()
        ]
        parts += ["## Questions on one 4k document: milliseconds to the first token", "\n".join(lines)]
    return "\n\n".join(part for part in parts if part)


def systems(results: Results) -> str:
    """Versions and settings."""
    lines = ["| system | version and settings | own template |", "| --- | --- | --- |"]
    for name in BY_NAME:
        if name in results.facts:
            facts = {**results.facts[name]}
            counts = facts.pop("template_tokens")
            same = {None: "none of its own", counts["ours"]: "same number of tokens"}.get(counts["theirs"])
            words = ", ".join(f"{key} {value}" for key, value in facts.items())
            lines.append(f"| {title(name)} | {words} | {same or '{theirs} tokens, ours {ours}'.format(**counts)} |")
    return "\n".join(lines)


def faults(results: Results) -> str:
    """What could not be measured, in the program's words."""
    if not results.faults:
        return ""
    lines = [f"- `{key}`: {text}" for key, text in results.faults.items()]
    return "\n".join(["## Not measured", "", *lines])
