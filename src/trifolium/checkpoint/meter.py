"""A download's progress on stderr: a bar on a terminal, one line elsewhere, nothing when it isn't wanted."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


class Meter:
    """`with Meter("name", total_bytes) as meter: meter.update(bytes_so_far)`."""

    def __init__(self, title: str, total: int, shown: bool = True) -> None:
        self._console = Console(stderr=True, quiet=not shown)
        self._title, self._total = title, total
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (shown and self._console.is_terminal),
        )
        self._task = self._progress.add_task(title, total=total)

    def update(self, done: int) -> None:
        """Show `done` bytes. More than the total (a moment's second copy) shows as all of it."""
        self._progress.update(self._task, completed=min(done, self._total))

    def __enter__(self) -> Self:
        if not self._console.is_terminal:
            self._console.print(f"fetching {self._title} ({self._total / 1e6:.0f} MB)", highlight=False, soft_wrap=True)
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
