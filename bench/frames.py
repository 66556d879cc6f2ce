"""The frame of every picture in the documents: layout, colours, axes without boxes, an atomic file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trifolium.files import replacing

BLUE, GREY = "#1d6fa5", "#9aa5b1"


@contextmanager
def frame(path: Path, columns: int, size: tuple[float, float] = (10, 3.4), **options: Any) -> Iterator[Sequence[Any]]:
    """Yields `columns` axes side by side to draw on, and saves the picture when the block ends without an error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False, **options)
    try:
        axes = list(grid[0])
        yield axes
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False, fontsize=8)
        with replacing(path) as partial:
            figure.savefig(partial, dpi=130)
    finally:
        plt.close(figure)


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
