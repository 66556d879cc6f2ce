"""A turn as it arrives: what the model thinks, what it says, and which tools it calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..errors import ToolError
from ..text import ReasoningSplitter
from .formats import ToolFormat
from .rules import CLOSE, OPEN
from .spec import Tool, ToolCall

if TYPE_CHECKING:
    from ..engine import Result


@dataclass(frozen=True)
class Said:
    """A piece of text."""

    kind: Literal["reasoning", "content"]
    text: str


@dataclass(frozen=True)
class Turn:
    """A whole turn. `finish_reason`: the result's, or `tool_calls` where a turn that ended by itself has some."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish_reason: str
    result: Result

    def as_dict(self) -> dict[str, object]:
        """The result's object, with what was said, thought and called."""
        calls = [{"name": call.name, "arguments": call.values} for call in self.calls]
        said = {"content": self.content, "reasoning": self.reasoning, "tool_calls": calls}
        return {**self.result.as_dict(), "finish_reason": self.finish_reason, **said}


class TurnReader:
    """Reads one turn, piece by piece.

    `format` None: there are no tools, and whatever looks like a call is text. Calls are given out when they are whole;
    one that is cut off, of an unknown tool or otherwise broken never is. A call inside an open think block ends it.
    White space between calls, and line breaks before one, belong to nobody.
    """

    def __init__(self, splitter: ReasoningSplitter, format: ToolFormat | None, tools: Sequence[Tool] = ()) -> None:
        self._splitter = splitter
        self._format = format
        self._tools = tools
        self._held = ""
        self._calling = False
        self._after_call = False  # whether white space is still to be dropped
        self.calls: list[ToolCall] = []

    @property
    def knows_calls(self) -> bool:
        """Whether text may turn out to be a call."""
        return self._format is not None

    def push(self, text: str) -> Iterator[Said | ToolCall]:
        """What is now known."""
        if self._format is None:
            yield from _said(*self._splitter.push(text))
            return
        self._held += text
        while True:
            before, tag, after = self._held.partition(CLOSE if self._calling else OPEN)
            if not tag:
                break
            self._held = after
            if self._calling:
                yield from self._call(before)
            else:
                yield from self._words(before.rstrip("\n"))
                yield from self._end_thinking()
            self._after_call = self._calling
            self._calling = not self._calling
        if not self._calling:
            keep = len(before) - len(_beginning(before))
            keep = len(before[:keep].rstrip("\n"))
            self._held = before[keep:]
            yield from self._words(before[:keep])

    def finish(self) -> Iterator[Said | ToolCall]:
        """What was held back for a call that never came. Half a call is dropped."""
        if not self._calling and self._held:
            yield from self._words(self._held)
        self._held = ""
        yield from _said(*self._splitter.finish())

    def read(self, text: str) -> tuple[str, str, tuple[ToolCall, ...]]:
        """(reasoning, content, calls) of a whole turn."""
        parts = [*self.push(text), *self.finish()]
        said = {kind: "".join(p.text for p in parts if isinstance(p, Said) and p.kind == kind) for kind in KINDS}
        return said["reasoning"], said["content"], tuple(self.calls)

    def turn(self, result: Result) -> Turn:
        """The turn of a finished answer."""
        reasoning, content, calls = self.read(result.text)
        return Turn(content, reasoning, calls, self.reason(result), result)

    def reason(self, result: Result) -> str:
        """Why the turn ended."""
        return "tool_calls" if self.calls and result.finish_reason == "stop" else result.finish_reason

    def _words(self, text: str) -> Iterator[Said]:
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        yield from _said(*self._splitter.push(text))

    def _end_thinking(self) -> Iterator[Said]:
        yield from _said(*self._splitter.finish())
        self._splitter = ReasoningSplitter(knows=False)

    def _call(self, body: str) -> Iterator[ToolCall]:
        assert self._format is not None
        try:
            call = self._format.read(body, self._tools)
        except ToolError:
            return  # under the grammar that calls follow, this is only what a broken vocabulary might do
        self.calls.append(call)
        yield call


KINDS: tuple[Literal["reasoning", "content"], ...] = ("reasoning", "content")


def _said(reasoning: str, content: str) -> Iterator[Said]:
    for kind, text in zip(KINDS, (reasoning, content), strict=True):
        if text:
            yield Said(kind, text)


def _beginning(text: str) -> str:
    """The longest end of `text` that begins OPEN."""
    return next((OPEN[:n] for n in range(min(len(OPEN) - 1, len(text)), 0, -1) if text.endswith(OPEN[:n])), "")
