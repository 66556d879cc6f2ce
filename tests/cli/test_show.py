"""What reaches a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from trifolium.cli.show import AnswerView, canvas_text, visible
from trifolium.engine import CanvasEvent, Cell, TextEvent


def test_control_characters_become_pictures() -> None:
    assert visible("a\x1b[2Jb\r\x07\n\tc\x9b\x7f") == "a␛[2Jb␍␇\n\tc�␡"


def test_a_hostile_answer_cannot_steer_the_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=40)
    cells = (Cell(3, "proposed", 0.5), Cell(None, "masked"))
    events = [TextEvent("x\x1b]0;owned\x07\n", (1,)), CanvasEvent(1, cells, ("\x1b[31m", "")), TextEvent("end", (2,))]
    assert AnswerView(console).show(events) is None
    shown = console.file.getvalue()
    assert "\x1b]0" not in shown and "\x1b[31m" not in shown
    assert "x␛]0;owned␇" in shown and "end" in shown


def test_the_canvas_tells_states_apart() -> None:
    line = canvas_text([Cell(None, "masked"), Cell(1, "proposed"), Cell(2, "accepted")], ["", "ab\n", "c"])
    assert line.plain == "░ab⏎c"
    assert len({str(span.style) for span in line.spans}) == 3
