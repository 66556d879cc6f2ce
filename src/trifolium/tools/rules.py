"""Grammars for turns with calls, rule by rule, in Lark's notation as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..constrain import Constraint

OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""What every call stands between."""

STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as models are taught to write it: one blank after commas and colons, and no other white space."""


class Rules:
    """A grammar that grows."""

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}

    def add(self, name: str, body: str, attribute: str = "") -> str:
        """Add a rule, or a terminal (upper case); returns its name."""
        self._lines[name] = f"{name}{attribute}: {body}"
        return name

    def fresh(self, stem: str) -> str:
        """A name that isn't taken."""
        return f"{stem}{len(self._lines)}"

    @staticmethod
    def literal(text: str) -> str:
        """Exactly this text."""
        return json.dumps(text)

    def json(self, schema: Mapping[str, Any]) -> str:
        """JSON that a schema describes."""
        styled = {key: value for key, value in schema.items() if key != "x-guidance"} | {"x-guidance": STYLE}
        return self.add(self.fresh("json"), f"%json {json.dumps(styled)}")

    def text_until(self, end: str, pattern: str = "(?s:.*)") -> str:
        """A text that matches `pattern`, up to the first place where `end` stands, and `end`."""
        body, attribute = f"/{pattern}/", f"[suffix={json.dumps(end)}]"
        for name, line in self._lines.items():
            if line == f"{name}{attribute}: {body}":
                return name
        return self.add(self.fresh("text"), body, attribute)

    def no_call(self) -> str:
        """Any text in which no call begins."""
        return self.add("REST", f"~/(?s:.*){OPEN}(?s:.*)/")

    def words(self) -> str:
        """Text in which no call begins, and which isn't blank."""
        return self.add("WORDS", f"/(?s:.*)\\S(?s:.*)/ & ~/(?s:.*){OPEN}(?s:.*)/")

    def constraint(self) -> Constraint:
        """The grammar as a constraint."""
        return Constraint("grammar", "\n".join(self._lines.values()))
