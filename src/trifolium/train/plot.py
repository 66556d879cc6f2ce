"""Training curves as a picture."""

from __future__ import annotations

import json
from pathlib import Path

from ..drawing import BLUE, GREY, frame

_LOSSES = (("plain_loss", GREY, "rows alone"), ("ar_loss", GREY, "clean stream"), ("loss", BLUE, "loss"))
_DRAFTS = (("accepted", BLUE, "with the chain"), ("accepted_plain", GREY, "rows alone"))
_HELD_OUT = (
    ("ar_loss", GREY, "next token"), ("loss", BLUE, "next token"), ("masked_loss", BLUE, "masked blocks of 8"),
)  # fmt: skip


def plot_metrics(metrics: Path, picture: Path) -> None:
    """Draw losses, and what was measured on held-out data, from a metrics.jsonl. Raises UsageError without matplotlib.

    The horizontal axis counts noisy rows that were scored, or tokens where there are none.
    """
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    held = [r for r in records if "held_out" in r]
    unit = "rows" if "rows" in records[0] else "tokens"
    drafts = bool(held) and "accepted" in held[0]["held_out"]
    with frame(picture, 2, (10, 3.6), grid=True) as (left, right):
        for key, colour, label in _LOSSES:
            if key in records[0]:
                label = "with the chain" if key == "loss" and "plain_loss" in records[0] else label
                left.plot(
                    [r[unit] / 1e3 for r in records], [r[key] for r in records], color=colour, lw=0.8, label=label
                )
        left.set(ylabel="cross-entropy", title="Training loss")
        for key, colour, label in _DRAFTS if drafts else _HELD_OUT:
            points = [(r[unit] / 1e3, r["held_out"][key] + drafts) for r in held if key in r["held_out"]]
            right.plot(*zip(*points, strict=True), "o-", ms=3, color=colour, label=label) if points else None
        right.set(ylabel="1 + accepted prefix" if drafts else "cross-entropy", title="Held out")
        for axis in (left, right):
            axis.set_xlabel("noisy rows scored, thousands" if unit == "rows" else "tokens seen, thousands")
