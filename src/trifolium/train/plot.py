"""Training curves as a picture."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import UsageError
from ..files import replacing

_BLUE, _GREY = "#1d6fa5", "#9aa5b1"
_LOSSES = (("plain_loss", _GREY, "rows alone"), ("ar_loss", _GREY, "clean stream"), ("loss", _BLUE, "loss"))
_DRAFTS = (("accepted", _BLUE, "with the chain"), ("accepted_plain", _GREY, "rows alone"))
_HELD_OUT = (
    ("ar_loss", _GREY, "next token"), ("loss", _BLUE, "next token"), ("masked_loss", _BLUE, "masked blocks of 8"),
)  # fmt: skip


def plot_metrics(metrics: Path, picture: Path) -> None:
    """Draw losses, and what was measured on held-out data, from a metrics.jsonl. Raises UsageError without matplotlib.

    The horizontal axis counts noisy rows that were scored, or tokens where there are none.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise UsageError("curves need matplotlib: pip install 'trifolium[train]'") from None
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    held = [r for r in records if "held_out" in r]
    unit = "rows" if "rows" in records[0] else "tokens"
    drafts = bool(held) and "accepted" in held[0]["held_out"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for key, colour, label in _LOSSES:
        if key in records[0]:
            label = "with the chain" if key == "loss" and "plain_loss" in records[0] else label
            left.plot([r[unit] / 1e3 for r in records], [r[key] for r in records], color=colour, lw=0.8, label=label)
    left.set(ylabel="cross-entropy", title="Training loss")
    for key, colour, label in _DRAFTS if drafts else _HELD_OUT:
        points = [(r[unit] / 1e3, r["held_out"][key] + drafts) for r in held if key in r["held_out"]]
        right.plot(*zip(*points, strict=True), "o-", ms=3, color=colour, label=label) if points else None
    right.set(ylabel="1 + accepted prefix" if drafts else "cross-entropy", title="Held out")
    for axis in (left, right):
        axis.set_xlabel("noisy rows scored, thousands" if unit == "rows" else "tokens seen, thousands")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    with replacing(picture) as partial:
        figure.savefig(partial, dpi=130)
    plt.close(figure)
