"""What the pictures of the documents have in common, drawn on the axes of `trifolium.drawing.frame`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trifolium.drawing import BLUE, GREY, frame

__all__ = ["BLUE", "GREY", "bars", "frame", "lines"]


def bars(
    axis: Any, names: Sequence[str], values: Sequence[float], title: str, *, form: str = "%.2f",
    colours: Sequence[str] | str = BLUE, reference: float | None = None,
) -> None:  # fmt: skip
    """Labelled horizontal bars, the first on top; a grey line at `reference`."""
    drawn = axis.barh(range(len(names)), values, color=colours)
    axis.bar_label(drawn, fmt=form, padding=3, fontsize=8)
    axis.set_yticks(range(len(names)), names)
    axis.set_title(title)
    axis.margins(x=0.18)
    axis.set_ylim(len(names) - 0.5, -0.5)
    if reference is not None:
        axis.axvline(reference, color=GREY, lw=1)


def lines(
    axis: Any, series: Mapping[str, Sequence[tuple[float, float]]], title: str, xlabel: str, *, log: str = "",
) -> None:  # fmt: skip
    """One line through the points of each series. `log`: the axes that are logarithmic, of "xy"."""
    for label, points in series.items():
        axis.plot([x for x, _ in points], [y for _, y in points], "o-", ms=4, label=label)
    axis.set(xlabel=xlabel, title=title)
    for name in log:
        axis.set(**{f"{name}scale": "log"})
    ticks = sorted({x for points in series.values() for x, _ in points})
    if "x" in log and len(ticks) <= 9:
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
