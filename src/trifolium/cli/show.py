"""Answers on a terminal: final text, and behind it the canvas as it resolves."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..engine import CanvasEvent, Cell, Event, FinishedEvent, Result, TextEvent

# Attributes, not only colours, so that the states differ on dark and light grounds and without colour.
STYLES = {"masked": "dim", "proposed": "italic cyan", "accepted": "bold green", "pinned": "bold"}
MASK = "░"

# A model's text must not move the cursor or recolour the terminal: control characters are shown as their pictures.
_VISIBLE = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {
    127: "␡",
    **dict.fromkeys(range(128, 160), "�"),
}


def visible(text: str) -> str:
    """Text that is safe to print on a terminal."""
    return text.translate(_VISIBLE)


def canvas_text(cells: Iterable[Cell], texts: Iterable[str]) -> Text:
    """The canvas on one line: masks as blocks, tokens in the style of their state."""
    line = Text()
    for cell, text in zip(cells, texts, strict=True):
        shown = MASK if cell.token is None else visible(text.replace("\n", "⏎"))
        line.append(shown, STYLES[cell.state])
    return line


def summary(result: Result) -> str:
    """One line on how an answer was made."""
    sources = " + ".join(f"{count} {name}" for name, count in result.accepted_by.items() if count)
    return (
        f"{result.mode}: {result.tokens} tokens in {result.passes} passes ({result.tokens_per_pass:.2f} a pass"
        + (f"; drafts {sources}" if sources else "")
        + f"), {result.tokens_per_second:.1f} tokens/s"
    )


class AnswerView:
    """Shows the events of one answer. Finished lines are printed once; only the last line and canvas are redrawn."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = ""
        self._canvas = Text()

    def show(self, events: Iterable[Event]) -> Result | None:
        """Follow an answer to its end; None if it was interrupted. What was shown stays on the screen either way."""
        result = None
        with Live(console=self._console, transient=True, auto_refresh=False, vertical_overflow="visible") as live:
            try:
                for event in events:
                    if isinstance(event, TextEvent):
                        self._add(event.text)
                    elif isinstance(event, CanvasEvent):
                        self._canvas = canvas_text(event.cells, event.texts)
                    else:
                        result = event.result
                    live.update(Text(self._line) + self._canvas, refresh=True)
            finally:
                live.update(Text(), refresh=True)
        if self._line:
            self._console.print(Text(self._line), soft_wrap=True)
        return result

    def _add(self, text: str) -> None:
        self._canvas = Text()
        *done, self._line = (self._line + visible(text)).split("\n")
        for line in done:
            self._console.print(Text(line), soft_wrap=True)


def print_plain(events: Iterable[Event]) -> Result | None:
    """Text alone, as it becomes final, for pipes."""
    result = None
    for event in events:
        if isinstance(event, TextEvent):
            print(event.text, end="", flush=True)
        elif isinstance(event, FinishedEvent):
            result = event.result
    print(flush=True)
    return result
