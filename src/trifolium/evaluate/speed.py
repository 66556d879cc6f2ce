"""Speed of the decoding modes on the same prompts, in one run, one request at a time.

Modes take turns on every prompt, so that what else the machine does falls on all of them alike, and every mode is
warmed up before anything counts.
"""

from __future__ import annotations

import json
import resource
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine import Result
from ..errors import NotFoundError, UsageError
from ..ops.native import native
from ..ops.registry import chosen

if TYPE_CHECKING:
    from ..api import LM

Conversation = Sequence[Mapping[str, Any]]

MODES = ("ar", "verified", "diffusion")
WARM_UP = 8
"""Tokens of the answer that each mode gives before anything counts."""


@dataclass
class Totals:
    """Sums over all answers of one mode."""

    results: list[Result] = field(default_factory=list)
    peak_bytes: int = 0

    def count(self, name: str) -> int:
        """The sum of a count of the results."""
        return sum(int(getattr(result, name)) for result in self.results)

    def seconds(self, name: str) -> float:
        """The sum of a time of the results."""
        return sum(float(getattr(result, name)) for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """The totals, under the keys of a single result."""
        first = self.results[0]
        tokens, passes, seconds = self.count("tokens"), self.count("passes"), self.seconds("seconds")
        accepted: Counter[str] = Counter()
        for result in self.results:
            accepted.update(result.accepted_by)
        return {
            "prompt_tokens": self.count("prompt_tokens"),
            "cached_tokens": self.count("cached_tokens"),
            "tokens": tokens,
            "passes": passes,
            "tokens_per_pass": tokens / passes,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "prompt_passes": self.count("prompt_passes"),
            "prompt_seconds": self.seconds("prompt_seconds"),
            "load_seconds": first.load_seconds,
            "accepted_by": dict(accepted),
            "experts_per_pass": sum(r.experts_per_pass * r.passes for r in self.results) / passes,
            "finish_reason": dict(Counter(result.finish_reason for result in self.results)),
            "mode": first.mode,
            "drafts": first.drafts,
            "model": first.model,
            "dtype": first.dtype,
            "peak_memory_mb": self.peak_bytes / 2**20,
        }


def read_prompts(path: Path | None) -> list[Conversation]:
    """Conversations from a JSONL file, one object with `messages` a line; the built-in held-out set for None.

    Raises NotFoundError, or UsageError that names the line at fault.
    """
    if path is None:
        text = resources.files("trifolium.evaluate").joinpath("prompts.jsonl").read_text("utf-8")
    else:
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise NotFoundError(f"can't read prompts from {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"{path} is not UTF-8 text") from None
    prompts: list[Conversation] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                messages = json.loads(line)["messages"]
            except (ValueError, KeyError, TypeError):
                raise UsageError(f"{path}, line {number}: not a JSON object with `messages`") from None
            prompts.append(messages)
    if not prompts:
        raise UsageError(f"{path} holds no prompts")
    return prompts


def compare(
    lm: LM,
    prompts: Sequence[Conversation],
    modes: Sequence[str],
    progress: Callable[[], None] = lambda: None,
    **options: Any,
) -> dict[str, Totals]:
    """Greedy answers to all prompts in every mode.

    `options`: more options of `LM.generate`; errors are its own too. `progress` is called after every answer.
    """
    if unknown := [mode for mode in modes if mode not in MODES]:
        raise UsageError(f"unknown mode {unknown[0]!r}: choose from {', '.join(MODES)}")
    if not modes or len(set(modes)) < len(modes):
        raise UsageError("name each mode once, at least one of them")
    for mode in modes:
        lm.generate(prompts[0], mode=mode, **{**options, "max_tokens": WARM_UP})
    totals = {mode: Totals() for mode in modes}
    for i, prompt in enumerate(prompts):
        turn = i % len(modes)
        for mode in (*modes[turn:], *modes[:turn]):
            reset_peak_memory()
            lm.engine.forget_prefixes()  # every mode computes every prompt
            totals[mode].results.append(lm.generate(prompt, mode=mode, **options))
            totals[mode].peak_bytes = max(totals[mode].peak_bytes, peak_memory())
            progress()
    return totals


def equal_to_ar(totals: Mapping[str, Totals]) -> float | None:
    """Share of prompts whose verified tokens and end equal AR's; None unless both modes ran."""
    if "ar" not in totals or "verified" not in totals:
        return None
    pairs = list(zip(totals["ar"].results, totals["verified"].results, strict=True))
    return sum(a.token_ids == v.token_ids and a.finish_reason == v.finish_reason for a, v in pairs) / len(pairs)


def report(lm: LM, totals: Mapping[str, Totals], **about: Any) -> dict[str, Any]:
    """What `trifolium bench --json` prints. `about`: further facts on the run."""
    modes = {mode: total.as_dict() for mode, total in totals.items()}
    if (share := equal_to_ar(totals)) is not None:
        modes["verified"]["equal_to_ar"] = share
    return {"modes": modes, "model": lm.name, "dtype": lm.dtype, "kernels": kernels(lm), **about}


def kernels(lm: LM) -> dict[str, str]:
    """Which implementations run, and why."""
    found = native()
    rows = "native" if found.library is not None else "torch"
    return {"rows": f"{rows}: {found.why}", **chosen(lm.model.embed.weight.device)}


def reset_peak_memory() -> None:
    """Let the process's peak of resident memory start from now on (Linux: proc_pid_clear_refs(5))."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # elsewhere the peak is that of the whole process


def peak_memory() -> int:
    """Largest resident memory, in bytes, since the last reset: weights and all, not what one answer adds."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if peak > 2**32 else peak * 1024  # bytes on macOS, kilobytes elsewhere
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
