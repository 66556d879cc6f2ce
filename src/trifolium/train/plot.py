"""Training curves as a picture."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import UsageError


def plot_metrics(metrics: Path, picture: Path) -> None:
    """Draw loss and held-out drafts over the rows seen, from a metrics.jsonl. Raises UsageError without matplotlib."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise UsageError("curves need matplotlib: pip install 'trifolium[train]'") from None
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    seen = [r["rows"] / 1000 for r in records]
    held = [(r["rows"] / 1000, r["held_out"]) for r in records if "held_out" in r]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    left.plot(seen, [r["plain_loss"] for r in records], color="#9aa5b1", lw=0.8, label="rows alone")
    left.plot(seen, [r["loss"] for r in records], color="#1d6fa5", lw=0.8, label="with the chain")
    left.set(xlabel="noisy rows scored, thousands", ylabel="cross-entropy", title="Training loss")
    left.legend(frameon=False)
    for key, colour, label in (("accepted", "#1d6fa5", "with the chain"), ("accepted_plain", "#9aa5b1", "rows alone")):
        right.plot([x for x, _ in held], [1 + h[key] for _, h in held], "o-", ms=3, color=colour, label=label)
    right.set(xlabel="noisy rows scored, thousands", ylabel="1 + accepted prefix", title="Held-out drafts")
    right.legend(frameon=False)
    for axis in (left, right):
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    temporary = picture.with_name(picture.name + ".partial.png")
    figure.savefig(temporary, dpi=130)
    plt.close(figure)
    temporary.replace(picture)
