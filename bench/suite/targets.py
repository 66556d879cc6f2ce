"""What we set out to reach, as ratios within one run, and what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from .results import Results


@dataclass(frozen=True)
class Finding:
    """A measured target. `value` None: not measured. `besides`: further figures, in words."""

    value: float | None
    besides: str = ""


@dataclass(frozen=True)
class Target:
    """`slug` names its file of notes. `least`: whether larger is better. `percent`: how it is written."""

    slug: str
    title: str
    wanted: float
    measure: Callable[[Results], Finding]
    least: bool = True
    percent: bool = False

    def met(self, finding: Finding) -> bool | None:
        """None if it wasn't measured."""
        if finding.value is None:
            return None
        return finding.value >= self.wanted if self.least else finding.value <= self.wanted

    def written(self, value: float) -> str:
        return f"{value:.1%}" if self.percent else f"{value:.2f} x"

    @property
    def wish(self) -> str:
        """The target in words."""
        sign = "at least" if self.least else "at most"
        return f"{sign} {self.wanted:.0%}" if self.percent else f"{sign} {self.wanted:g} x"


def one_request(part: str, system: str) -> Callable[[Results], Finding]:
    """Decoding speed against llama.cpp's, one request at a time."""

    def measure(results: Results) -> Finding:
        value = results.ratio(1, part, system, "llamacpp", "decode_tok_s")
        whole = results.ratio(1, part, system, "llamacpp", "tok_s")
        return Finding(value, "" if whole is None else f"{whole:.2f} x with the prompts' time")

    return measure


def sixteen(results: Results) -> Finding:
    found = {p: results.ratio(16, p, "int4-verified", "llamacpp", "tok_s") for p in ("chat", "code", "extract")}
    words = ", ".join(f"{part} {value:.2f} x" for part, value in found.items() if value is not None and part != "chat")
    return Finding(found["chat"], words)


def never_below(results: Results) -> Finding:
    """The worst place of all."""
    ratios = [
        (ratio, f"{part}, {load} at once" if load > 1 else f"{part}, one request")
        for load, part in results.places()
        for dtype in ("int4", "int8", "float32")
        if (ratio := results.ratio(load, part, f"{dtype}-verified", f"{dtype}-ar", "tok_s")) is not None
    ]
    if not ratios:
        return Finding(None)
    worst = min(ratios)
    return Finding(
        worst[0], f"lowest of {len(ratios)}: {worst[1]}; median {statistics.median(r for r, _ in ratios):.2f} x"
    )


def wide_pass(results: Results) -> Finding:
    rows = {int(row["rows"]): row for row in results.rows.get("int4-ar", [])}
    if 1 not in rows or 64 not in rows:
        return Finding(None)
    one, wide = rows[1]["plain_ms"], rows[64]
    fused = wide.get("fused_ms", wide["plain_ms"])
    return Finding(fused / one, f"{fused:.1f} ms by {one:.1f} ms; commit rows alone {wide['plain_ms'] / one:.2f} x")


def scheduling(results: Results) -> Finding:
    """All that is neither the model's pass nor proposals: queues, planning rows, accepting, text."""
    found = results.overheads.get("int4-verified")
    if found is None:
        return Finding(None)
    inside, proposals = found["runner_share"], found.get("proposer_share", 0.0)
    words = f"{found['ms_per_step']:.0f} ms a step; the model's pass {inside:.0%}, proposals {proposals:.0%}"
    return Finding(1 - inside - proposals, f"{words}; choosing the batch {found['scheduler_share']:.1%}")


def prefix_hit(results: Results) -> Finding:
    times = results.prefixes.get("int4-verified", [])
    if len(times) < 2:
        return Finding(None)
    hit = statistics.median(times[1:])
    return Finding(hit / times[0], f"{hit:.0f} ms after {times[0]:.0f} ms cold")


TARGETS = (
    Target("chat", "One request, `verified`, chat, against llama.cpp", 1.7, one_request("chat", "int4-verified")),
    Target("extract", "One request, `verified`, copying, against it", 4.0, one_request("extract", "int4-verified")),
    Target("sixteen", "16 requests at once, `verified`, chat, against llama.cpp's total", 8.0, sixteen),
    Target("never-below", "`verified` against our own `ar`, at any load", 1.0, never_below),
    Target("ar", "Our `ar` against llama.cpp, one request, chat", 1.0, one_request("chat", "int4-ar")),
    Target("rows", "A pass of 64 rows against one of one row", 1.4, wide_pass, least=False),
    Target("scheduler", "A step besides pass and proposals, 64 requests", 0.05, scheduling, least=False, percent=True),
    Target("prefix", "First token of a 4k prefix hit against cold", 0.05, prefix_hit, least=False, percent=True),
)  # fmt: skip
