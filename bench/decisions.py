"""Typed questions over one state: how long they take together, and what asking them one by one would take.

    python bench/decisions.py [--model smollm2-135m] [--states 50 500 4000] [--questions 1 8 400] [--out bench/out]

Writes decisions.json and decisions.md. Three ways to the same answers, in one run, each from an empty prefix cache:

- together: one request; the state is computed once, all questions' rows share passes;
- forks: each question alone, one after another, with the state from the prefix cache: one fork per question;
- jointly (up to 8 questions): one group, every combination of answers scored, in one order.

Forks of 400 questions are timed on `--forks` of them and scaled up, which the table marks.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trifolium
from trifolium import LM, Group, Question

TEXT = "The customer wrote again on Monday about the invoice of last month, and nobody has answered so far. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--states", type=int, nargs="+", default=[50, 500, 4000], help="tokens")
    parser.add_argument("--questions", type=int, nargs="+", default=[1, 8, 400])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--forks", type=int, default=24)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out")
    options = parser.parse_args()
    lm = trifolium.load(options.model, adapter=None, dtype=options.dtype)
    lm.decide("warm", questions(2))
    rows = []
    for tokens in options.states:
        state = state_of(lm, tokens)
        for count in options.questions:
            row = measure(lm, state, count, options.repeats, options.forks)
            rows.append({"state": tokens, "questions": count, **row})
            print(json.dumps(rows[-1]), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    result = {"model": lm.name, "dtype": lm.dtype, "rows": rows}
    (options.out / "decisions.json").write_text(json.dumps(result, indent=2) + "\n")
    (options.out / "decisions.md").write_text(table(rows))
    print(table(rows))


def questions(count: int) -> list[Question]:
    """Binary questions of much the same length."""
    return [Question.noul(f"q{i}", f"Does the customer mention topic {i}?") for i in range(count)]


def state_of(lm: LM, tokens: int) -> str:
    """Text of about so many tokens."""
    size = len(lm.tokenizer.encode(TEXT))
    return TEXT * max(1, round(tokens / size))


def measure(lm: LM, state: str, count: int, repeats: int, forks: int) -> dict[str, Any]:
    """Median seconds of each way."""
    asked = questions(count)
    some = asked[:forks]

    def one_by_one() -> None:
        for question in some:
            lm.decide(state, [question])

    together = timed(lm, lambda: lm.decide(state, asked), repeats)
    alone = timed(lm, one_by_one, repeats)
    row: dict[str, Any] = {
        "together_seconds": together,
        "decisions_per_second": count / together,
        "forks_seconds": alone * count / len(some),
        "forks_scaled": len(some) < count,
    }
    row["gain"] = row["forks_seconds"] / together
    if count <= 8:
        group = Group([question.name for question in asked], orders=1)
        row["joint_seconds"] = timed(lm, lambda: lm.decide(state, asked, joint=[group]), repeats)
        row["one_seconds"] = timed(lm, lambda: lm.decide(state, asked[:1]), repeats)
        row["joint_over_one"] = row["joint_seconds"] / row["one_seconds"]
    return row


def timed(lm: LM, work: Callable[[], object], repeats: int) -> float:
    """Median seconds from an empty prefix cache."""
    found = []
    for _ in range(repeats):
        lm.engine.forget_prefixes()
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| state, tokens | questions | together, s | decisions/s | forks, s | gain | jointly, s | jointly / one |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        forks = f"{row['forks_seconds']:.2f}" + (" (scaled)" if row["forks_scaled"] else "")
        joint = f"{row['joint_seconds']:.2f} | {row['joint_over_one']:.2f}" if "joint_seconds" in row else "- | -"
        lines.append(
            f"| {row['state']} | {row['questions']} | {row['together_seconds']:.2f} "
            f"| {row['decisions_per_second']:.1f} | {forks} | {row['gain']:.2f} | {joint} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
