"""What the APIs share about tools: which a request brings, and how calls of them are told."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import ToolError
from ..tools import Tool, ToolUse, read_use
from .errors import api_error_of

PIECE = 32
"""Characters of arguments that a stream tells at once."""


def use_of(tools: Sequence[Any] | None, choice: Any, parallel: bool | None) -> ToolUse | None:
    """Tools in the shapes of OpenAI's APIs; None if there are none. Raises ApiError that names the field."""
    try:
        return read_use(tools or (), choice, parallel)
    except ToolError as error:
        raise api_error_of(error if error.where[:1] == ("tool_choice",) else error.under("tools")) from None


def use_of_anthropic(tools: Sequence[Any] | None, choice: Mapping[str, Any] | None) -> ToolUse | None:
    """Tools as Anthropic's clients describe them. Raises ApiError that names the field."""
    functions = [_function(tool, i) for i, tool in enumerate(tools or ())]
    choice = choice or {"type": "auto"}
    kind = choice.get("type")
    if kind == "tool":
        wanted: Any = {"type": "function", "name": choice.get("name")}
    else:
        wanted = {"auto": "auto", "any": "required", "none": "none"}.get(str(kind), {})
    return use_of(functions, wanted, not choice.get("disable_parallel_tool_use"))


def _function(tool: Mapping[str, Any], place: int) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        fault = ToolError("only custom tools can be called: the server runs none itself", ("tools", place, "type"))
        raise api_error_of(fault)
    named = {"name": tool.get("name", ""), "description": tool.get("description")}
    return {"type": "function", **named, "parameters": tool.get("input_schema")}


def described(use: ToolUse | None) -> tuple[Tool, ...]:
    """The tools that a prompt tells of."""
    return () if use is None else use.tools


def call_id(stem: str = "call") -> str:
    """A new id: no two calls of a conversation may have the same, whoever made them."""
    return f"{stem}_{secrets.token_hex(12)}"


def pieces(text: str) -> Iterator[str]:
    """A text in parts, as a stream tells it."""
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]
