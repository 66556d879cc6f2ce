"""The frame of every picture: layout, colours, axes without boxes, an atomic file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import UsageError
from .files import replacing

BLUE, GREY = "#1d6fa5", "#9aa5b1"


@contextmanager
def frame(
    path: Path, columns: int = 1, size: tuple[float, float] = (10, 3.4), *, grid: bool = False, **options: Any
) -> Iterator[Sequence[Any]]:
    """Yields `columns` axes side by side to draw on, and saves the picture when the block ends without an error.

    `size`: inches. Raises UsageError without matplotlib.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot as plt
    except ImportError:
        raise UsageError("pictures need matplotlib: pip install 'trifolium[train]'") from None
    figure, drawn = plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False, **options)
    try:
        axes = list(drawn[0])
        yield axes
        for axis in axes:
            axis.spines[["top", "right"]].set_visible(False)
            if axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False, fontsize=8)
            if grid:
                axis.grid(alpha=0.25)
        with replacing(path) as partial:
            figure.savefig(partial, dpi=130)
    finally:
        plt.close(figure)
