"""From records to numbers: rates, latencies, agreement. Times in seconds unless a name says ms."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

Numbers = dict[str, float]

TOGETHER = 1e-3
"""Tokens that come within this many seconds of each other came together, whatever the program's stream looks like."""


def deliveries(arrivals: Sequence[Sequence[float]]) -> list[tuple[float, int]]:
    """(time, tokens) of what came together; the time is that of the last of them."""
    merged: list[tuple[float, int]] = []
    started = -1.0
    for at, count in arrivals:
        if merged and at - started < TOGETHER:
            merged[-1] = (at, merged[-1][1] + int(count))
        else:
            started = at
            merged.append((at, int(count)))
    return merged


def gaps_ms(came: Sequence[tuple[float, int]]) -> list[float]:
    """For every token after the first delivery: its delivery's wait, shared evenly by the tokens that came with it."""
    found: list[float] = []
    for (before, _), (at, count) in pairwise(came):
        found += [1e3 * (at - before) / count] * count
    return found


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them don't exceed."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def numbers_of(record: Mapping[str, Any]) -> Numbers:
    """The figures of one measurement.

    tok_s: all tokens by the wall time from the first ask to the last answer, prompts included. decode_tok_s: what one
    request gets after its first tokens. passes_s: one request's passes.
    """
    answers = record["answers"]
    came = [deliveries(a["arrivals"]) for a in answers]
    tokens = sum(a["tokens"] for a in answers)
    numbers: Numbers = {
        "requests": len(answers),
        "tokens": tokens,
        "wall": record["wall"],
        "tok_s": tokens / record["wall"],
    }
    spoke = [c for c in came if c]
    if spoke:
        numbers["ttft_ms"] = 1e3 * statistics.median(c[0][0] for c in spoke)
    decoding = sum(c[-1][0] - c[0][0] for c in spoke)
    if decoding > 0:
        numbers["decode_tok_s"] = sum(n for c in spoke for _, n in c[1:]) / decoding
        gaps = [gap for c in spoke for gap in gaps_ms(c)]
        numbers["p50_ms"], numbers["p99_ms"] = percentile(gaps, 0.5), percentile(gaps, 0.99)
    if tokens and all(a["passes"] for a in answers):
        numbers["tokens_per_pass"] = tokens / sum(a["passes"] for a in answers)
        if "decode_tok_s" in numbers:
            numbers["passes_s"] = numbers["decode_tok_s"] / numbers["tokens_per_pass"]
    if record.get("peak_bytes"):
        numbers["peak_mb"] = record["peak_bytes"] / 2**20
    if record.get("joules") is not None and tokens:
        numbers["joules_per_token"] = record["joules"] / tokens
    return numbers


def median_of(rounds: Sequence[Numbers]) -> Numbers:
    """The median of every figure, over the rounds that have it."""
    names = dict.fromkeys(name for numbers in rounds for name in numbers)
    return {name: statistics.median(n[name] for n in rounds if name in n) for name in names}


def spread_of(rounds: Sequence[Numbers], name: str) -> float:
    """How far apart a figure's rounds are: (largest - smallest) / median; 0 for a single one."""
    values = [n[name] for n in rounds if name in n]
    return (max(values) - min(values)) / statistics.median(values) if len(values) > 1 else 0.0


def agreement(texts: Mapping[str, str], reference: Mapping[str, str]) -> tuple[float, float] | None:
    """Share of texts that equal the reference's, and how much of the longer one agrees from the start, on average."""
    shared = [(texts[id], reference[id]) for id in texts if id in reference]
    if not shared:
        return None
    equal = sum(a == b for a, b in shared) / len(shared)
    begin = statistics.mean(_common(a, b) / max(len(a), len(b), 1) if a or b else 1.0 for a, b in shared)
    return equal, begin


def copied(text: str, prompt: str, size: int = 4) -> float | None:
    """Share of an answer's runs of `size` words that stand in the prompt; None for shorter answers."""
    own, known = _runs(text, size), set(_runs(prompt, size))
    return sum(run in known for run in own) / len(own) if own else None


def _runs(text: str, size: int) -> list[tuple[str, ...]]:
    words = text.split()
    return [tuple(words[i : i + size]) for i in range(len(words) - size + 1)]


def _common(a: str, b: str) -> int:
    """Characters that both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
