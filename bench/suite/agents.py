"""What agents ask for: structured answers, tool calls and typed decisions. Figures of their own scripts, on the page.

The scripts leave JSON in bench/out; the page keeps the latest of each in agents.json, so that one can be measured again
without the others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trifolium.files import replacing

PARTS = (
    "structured_race",
    "structured_valid",
    "tool_calls",
    "tool_eval_bench",
    "skills",
    "decisions",
    "decisions_quality",
)
"""Files of bench/out, without their ending."""

PICTURE = "pictures/decisions-reliability.png"

PUBLISHED = """Published figures for these sets are of models hundreds of times larger; this one is small, and its
answers are near chance until it has learnt to decide (`docs/decisions.md`)."""


def collect(out: Path, folder: Path) -> dict[str, Any]:
    """agents.json in `folder`, brought up to date with what lies in `out`."""
    path = folder / "agents.json"
    known: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for part in PARTS:
        if (found := out / f"{part}.json").exists():
            # Other people's scorecards hold NaN, which JSON doesn't have.
            known[part] = json.loads(found.read_text("utf-8"), parse_constant=lambda name: None)
    if (picture := out / "decisions_reliability.png").exists():
        (folder / "pictures").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, folder / PICTURE)
    if known:
        with replacing(path) as partial:
            partial.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return known


def markdown(known: Mapping[str, Any]) -> str:
    """The section; empty if nothing was measured."""
    parts = [
        *_race(known.get("structured_race")),
        *_valid(known.get("structured_valid")),
        *_calls(known.get("tool_calls"), known.get("tool_eval_bench")),
        *_skills(known.get("skills")),
        *_speed(known.get("decisions")),
        *_quality(known.get("decisions_quality")),
    ]
    return "\n\n".join(["## Structured answers, tool calls, decisions", *parts]) if parts else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _race(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    rows = [
        [row["mode"], f"{row['tokens']:.1f}", f"{row['passes']:.1f}", f"{row['ms']:.0f}",
         f"{row['against_base']:.2f} x", f"{row['least']:.2f} to {row['most']:.2f}",
         f"{100 * row['same_values']:.0f} %"]
        for row in found["modes"]
    ]  # fmt: skip
    head = ["mode", "tokens", "passes", "ms an answer", "against jump-ahead", "by task", "values as AR"]
    told = (
        f"`python bench/structured.py race`: {found['tasks']} questions, {found['rounds']} rounds, `{found['model']}`, "
    )
    told += f"{found['dtype']}. Wanted: 4 x. All tokens of an answer in one pass, as if they were known, take "
    told += f"{found['one_pass_ms']:.0f} ms: why there is less to win than that is in `docs/log.md`."
    return ["### Structured answers", told, _table(head, rows)]


def _valid(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    counts = found["counts"]
    whole = sum(count for name, count in counts.items() if name.endswith(", stop"))
    cut = sum(count for name, count in counts.items() if name.endswith(", length"))
    told = (
        f"`python bench/structured.py valid`: {found['schemas']:,} random schemas, {whole + cut:,} documents of random "
        f"models and `nano`: {whole:,} complete ones, of which {counts.get('INVALID', 0)} were invalid; {cut:,} "
        "reached their limit of tokens and say so. "
    )
    return [f"{told}`verified` differed from `ar` in {counts.get('verified differs from ar', 0)}."]


def _calls(found: Sequence[Mapping[str, Any]] | None, bench: Mapping[str, Any] | None) -> list[str]:
    parts = []
    if found is not None:
        names = ["turns", "calls", "empty turns", "missing calls", "unwanted calls", "unknown tools", "invalid calls"]
        rows = [[f"`{row['model']}`", *(row.get(name, 0) for name in names)] for row in found]
        parts += ["`python bench/tool_calls.py`, all modes and choices:", _table(["model", *names], rows)]
    if bench is not None:
        parts.append(
            f"`tool-eval-bench run --short` ({bench['version']}) against `trifolium serve`, temperature 0: "
            + "; ".join(f"`{row['model']}` {row['points']} of {row['most']} points" for row in bench["runs"])
            + "."
        )
    return ["### Tool calls", *parts] if parts else []


def _skills(found: Mapping[str, Any] | None) -> list[str]:
    if not found:
        return []
    kinds = sorted({kind for modes in found.values() for row in modes.values() for kind in row})
    rows = [
        [f"`{model}`", mode]
        + [f"{100 * row[kind]['right']:.0f} % of {row[kind]['items']}" if kind in row else "" for kind in kinds]
        + [f"{_mean([one['tokens_per_pass'] for one in row.values()]):.2f}"]
        for model, modes in found.items()
        for mode, row in modes.items()
    ]
    told = "`python bench/skills.py`: turns that are right, of items of the Berkeley Function Calling Leaderboard:"
    return [told, _table(["model", "mode", *kinds, "tokens a pass"], rows)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _speed(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    rows = []
    for row in found["rows"]:
        joint = ["", ""]
        if "joint_seconds" in row:
            joint = [f"{row['joint_seconds']:.2f}", f"{row['joint_over_one']:.2f} x"]
        forks = f"{row['forks_seconds']:.2f}" + (" (scaled)" if row["forks_scaled"] else "")
        rows.append(
            [row["state"], row["questions"], f"{row['together_seconds']:.2f}", f"{row['decisions_per_second']:.1f}",
             forks, f"{row['gain']:.1f} x", *joint]
        )  # fmt: skip
    head = [
        "state, tokens",
        "questions",
        "together, s",
        "decisions/s",
        "forks, s",
        "gain",
        "jointly, s",
        "jointly / one",
    ]
    told = f"`python bench/decisions.py`: `{found['model']}`, {found['dtype']}, medians."
    return ["### Typed decisions", told, _table(head, rows)]


def _quality(found: Mapping[str, Any] | None) -> list[str]:
    if found is None:
        return []
    parts = []
    if rows := found.get("rows"):
        plain, heated = rows["plain"], rows["calibrated"]
        kinds = ", ".join(f"{kind} {share:.3f}" for kind, share in rows["accuracy_by_type"].items())
        parts.append(
            f"The {plain['count']:,} questions of the typed-decisions rows (`{rows['model']}`, {rows['dtype']}): "
            f"accuracy {plain['accuracy']:.3f} ({kinds}; chance {rows['chance']:.3f}), calibration error "
            f"{plain['calibration_error']:.3f}, after fitting temperatures on the other half "
            f"{heated['calibration_error']:.3f}; cross-entropy {plain['loss']:.3f} and {heated['loss']:.3f} nats; sure "
            f"loss {plain['sure_loss']:.3f}."
        )
        parts.append(f"![How often answers are right, by how likely they were thought to be]({PICTURE})")
    if joint := found.get("joint"):
        parts.append(
            f"Relations of LOG and CHO over {joint['cases']} cases of jevbench: of {joint['relations']}, "
            f"{joint['contradicted_alone']} are contradicted when the questions are asked one by one, and "
            f"{joint['contradicted_jointly']} in joint groups."
        )
    if bench := found.get("jevbench"):
        parts += [f"jevbench, suite `{bench['suite']}`, questions one by one:", "```text\n" + bench["table"] + "\n```"]
    if cards := found.get("sys1bench"):
        rows = [[name, *_card(card)] for name, card in cards["scorecards"].items()]
        parts += [
            f"sys1bench, {cards['items']} items a domain:",
            _table(["domain", "accuracy", "calibration error"], rows),
        ]
    return ["### Quality of decisions", *parts, PUBLISHED] if parts else []


def _card(card: Mapping[str, Any]) -> list[str]:
    """Accuracy and calibration error, wherever a scorecard of sys1bench has them."""

    def find(node: Any, names: Sequence[str]) -> float | None:
        if isinstance(node, Mapping):
            for name in names:
                if isinstance(node.get(name), int | float):
                    return float(node[name])
            return next((value for inner in node.values() if (value := find(inner, names)) is not None), None)
        return None

    found = (find(card, ("accuracy_median", "accuracy")), find(card, ("ece_width_15", "ece")))
    return ["" if value is None else f"{value:.3f}" for value in found]
