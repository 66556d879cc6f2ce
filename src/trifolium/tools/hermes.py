"""Hermes' format: a call is one JSON object with `name` and `arguments`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..constrain.schema import closed
from ..errors import ToolError
from .rules import CLOSE, OPEN, Rules
from .spec import Tool, ToolCall

HEAD = '"arguments": '


class Hermes:
    """Calls as <tool_call>{"name": ..., "arguments": {...}}</tool_call>, each part on a line of its own."""

    name = "hermes"

    def rule(self, rules: Rules, tool: Tool) -> str:
        """Add what a call of a tool looks like after OPEN to a grammar; returns its rule's name."""
        head = rules.literal(f'\n{{"name": {json.dumps(tool.name)}, {HEAD}')
        arguments = rules.json(closed({"type": "object", **tool.parameters}))
        return rules.add(rules.fresh("tool"), f"{head} {arguments} {rules.literal('}' + chr(10) + CLOSE)}")

    def read(self, body: str, tools: Sequence[Tool]) -> ToolCall:
        """The call between OPEN and CLOSE. Raises ToolError if it is none, or of a tool that isn't there."""
        try:
            said = json.loads(body)
        except (ValueError, RecursionError):
            raise ToolError("the call is no JSON") from None
        if not isinstance(said, dict) or not {"name", "arguments"} <= said.keys() or len(said) > 2:
            raise ToolError("a call has a name and arguments")
        if all(tool.name != said["name"] for tool in tools):
            raise ToolError(f"there is no tool {said['name']!r:.80}")
        if not isinstance(said["arguments"], dict):
            raise ToolError("a call's arguments are an object")
        return ToolCall(said["name"], _arguments(body, said["arguments"]))

    def write(self, call_name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the model would write it, from OPEN to CLOSE."""
        said = f'{{"name": {json.dumps(call_name)}, {HEAD}{json.dumps(arguments, ensure_ascii=False)}}}'
        return f"{OPEN}\n{said}\n{CLOSE}"


def _arguments(body: str, values: dict[str, Any]) -> str:
    """The arguments as they were written; without the first of two members of one name, where there are such."""
    twice = False

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal twice
        twice = twice or len(dict(pairs)) < len(pairs)
        return dict(pairs)

    json.loads(body, object_pairs_hook=look)
    written = body[body.find(HEAD) + len(HEAD) : body.rfind("}")].strip()
    if not twice and HEAD in body and _is(written, values):
        return written
    try:
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise ToolError("the call's arguments can't be told as JSON") from None


def _is(written: str, values: dict[str, Any]) -> bool:
    """Whether a text is the JSON of these arguments."""
    try:
        return bool(json.loads(written) == values)
    except ValueError:
        return False
