"""What a chat does with a typed line: a /command, or a message that is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from ..engine import Event, FinishedEvent, Result, TextEvent
from ..errors import TrifoliumError
from .options import note
from .show import AnswerView, print_plain, summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..api import LM

HELP = """\
/help          this list
/clear         forget the conversation
/system TEXT   set the system message and start anew; without TEXT, show it
/mode MODE     verified, diffusion or ar; without MODE, show it
/stats         how the last answer was made, and the totals
/save FILE     write the conversation as JSON
/exit          end the chat (also Ctrl-D)
Ctrl-C stops an answer; what it said so far stays in the conversation."""


class Conversation:
    """The turns so far, and the commands on them."""

    def __init__(
        self, lm: LM, settings: Mapping[str, Any], console: Console, *, system: str | None = None, terminal: bool
    ) -> None:
        self._lm = lm
        self._settings = dict(settings)
        self._console = console
        self._terminal = terminal
        self._last: Result | None = None
        self._results: list[Result] = []
        self._noted: set[str] = set()
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.over = False

    def enter(self, line: str) -> None:
        """Do what the line says. Nothing that goes wrong on purpose ends the chat: it is printed."""
        if not line.strip():
            return
        try:
            if line.startswith("/"):
                self._command(*line[1:].split(maxsplit=1))
            else:
                self._ask(line)
        except (TrifoliumError, OSError) as error:
            self._console.print(f"error: {error}", markup=False)

    def _ask(self, message: str) -> None:
        self.messages.append({"role": "user", "content": message})
        system = [{"role": "system", "content": self.system}] if self.system is not None else []
        answer: list[str] = []
        try:
            events = self._record(self._lm.stream([*system, *self.messages], **self._settings), answer)
            result = AnswerView(self._console).show(events) if self._terminal else print_plain(events)
        except KeyboardInterrupt:
            self._console.print("(stopped)", style="dim")
        except TrifoliumError:
            self.messages.pop()
            raise
        else:
            self._finish(result)
        if answer:
            self.messages.append({"role": "assistant", "content": "".join(answer)})
        else:
            self.messages.pop()

    def _record(self, events: Iterator[Event], answer: list[str]) -> Iterator[Event]:
        for event in events:
            if isinstance(event, TextEvent):
                answer.append(event.text)
            elif isinstance(event, FinishedEvent):
                self._results.append(event.result)
            yield event

    def _finish(self, result: Result | None) -> None:
        for text in result.notes if result is not None else ():
            if text not in self._noted:
                self._noted.add(text)
                note(text)

    def _command(self, name: str = "", argument: str = "") -> None:
        say = self._console.print
        if name == "help":
            say(HELP, markup=False)
        elif name == "clear":
            self.messages.clear()
            say("(forgotten)", style="dim")
        elif name == "system":
            if argument:
                self.system = argument
                self.messages.clear()
            say(f"system: {self.system or '(the default)'}", style="dim", markup=False)
        elif name == "mode":
            self._set_mode(argument)
            say(f"mode: {self._settings['mode']}", style="dim", markup=False)
        elif name == "stats":
            self._stats()
        elif name == "save":
            self._save(argument)
        elif name in ("exit", "quit"):
            self.over = True
        else:
            say(f"no command /{name}; /help lists them", markup=False)

    def _set_mode(self, mode: str) -> None:
        from ..api import split_options

        if mode:
            changed = {**self._settings, "mode": mode}
            split_options(changed)
            self._settings = changed

    def _stats(self) -> None:
        if not self._results:
            self._console.print("no answers yet", style="dim")
            return
        self._console.print(summary(self._results[-1]), style="dim", markup=False)
        tokens, passes = sum(r.tokens for r in self._results), sum(r.passes for r in self._results)
        seconds = sum(r.seconds for r in self._results)
        self._console.print(
            f"all {len(self._results)} answers: {tokens} tokens in {passes} passes "
            f"({tokens / max(passes, 1):.2f} a pass), {tokens / max(seconds, 1e-9):.1f} tokens/s",
            style="dim",
            markup=False,
        )

    def _save(self, name: str) -> None:
        if not name:
            self._console.print("/save needs a file name", markup=False)
            return
        system = [{"role": "system", "content": self.system}] if self.system is not None else []
        path = Path(name).expanduser()
        path.write_text(
            json.dumps({"messages": [*system, *self.messages]}, indent=2, ensure_ascii=False) + "\n", "utf-8"
        )
        self._console.print(f"saved to {path}", style="dim", markup=False)
