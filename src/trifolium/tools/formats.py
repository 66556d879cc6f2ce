"""How models write tool calls: Hermes' JSON, and the tagged parameters of Qwen3-Coder and Qwen3.5 and later.

A format says what a call looks like (`grammar`), reads one (`read`), and writes one (`write`), for conversations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..constrain import Constraint
from ..errors import ToolError
from .hermes import Hermes
from .rules import CLOSE, OPEN, Rules
from .spec import Tool, ToolCall, ToolUse
from .tagged import Tagged

__all__ = ["CLOSE", "OPEN", "ToolFormat", "constraint_of", "format_of"]

MAX_CALLS = 32
"""Calls of one turn."""


class ToolFormat(Protocol):
    """One way to write calls, between OPEN and CLOSE."""

    name: str

    def rule(self, rules: Rules, tool: Tool) -> str:
        """Add what a call of a tool looks like after OPEN to a grammar; returns its rule's name."""

    def read(self, body: str, tools: Sequence[Tool]) -> ToolCall:
        """The call between OPEN and CLOSE. Raises ToolError if it is none, or of a tool that isn't there."""

    def write(self, call_name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the model would write it, from OPEN to CLOSE."""


def format_of(template: str | None) -> ToolFormat:
    """The format that a chat template's source teaches; Hermes where it teaches none."""
    return Tagged() if "<function=" in (template or "") else Hermes()


def constraint_of(
    format: ToolFormat, use: ToolUse, *, content: Constraint | None = None, thinking: bool = False
) -> Constraint:
    """What a turn may be: text, calls, or text and calls, as `use` has it; every call valid by its tool's schema.

    `content`: what the turn must be if it isn't calls; a schema's. `thinking`: the turn begins with thoughts. A turn is
    never empty. Raises ToolError for schemas that the format can't follow.
    """
    if content is not None and content.kind != "schema":
        raise ToolError("beside tools, an answer can follow a JSON Schema, and no other constraint")
    rules = Rules()
    free = content is None and not use.required
    words = "" if use.required else rules.words() if content is None else rules.json(json.loads(content.text))
    if not use.callable:
        rules.add("start", words)
        return rules.constraint()
    rules.add("call", " | ".join(format.rule(rules, tool) for tool in use.callable))
    # Where words are welcome, or thoughts, they go on to the tag of a call.
    first = rules.text_until(OPEN) if free or thinking else rules.literal(OPEN)
    if not use.parallel:
        calls = f"{first} call"
    elif free:
        calls = f"({first} call){{1,{MAX_CALLS}}} {rules.no_call()}?"
    else:
        calls = f"{first} call (/\\n?/ {rules.literal(OPEN)} call){{0,{MAX_CALLS - 1}}}"
    rules.add("start", f"{words} | {calls}" if words else calls)
    return rules.constraint()
