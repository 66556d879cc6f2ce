"""Tools as callers describe them, the calls that models make, and which calls a turn may have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ..constrain.schema import check_schema
from ..errors import ConstraintError, ToolError

MAX_TOOLS = 128
"""Tools that a request may bring."""

NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
"""What a tool may be called: no name can break out of the syntax of a call."""

Choice = Literal["auto", "none", "required"]


@dataclass(frozen=True)
class Tool:
    """A function that the model may call. `parameters`: the JSON Schema of its arguments, an object's.

    Raises ToolError for a name that no call could hold, and for a schema that describes no object, is too large, or
    that nothing can satisfy.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise ToolError(
                f"a tool's name has 1 to 128 letters, digits and . _ : / -, which {self.name!r:.80} has not", ("name",)
            )
        if not isinstance(self.description, str):
            raise ToolError(f"the description of tool {self.name!r} is no text", ("description",))
        if not isinstance(self.parameters, Mapping):
            raise ToolError(f"the parameters of tool {self.name!r} are no JSON Schema", ("parameters",))
        if self.parameters.get("type", "object") != "object":
            raise ToolError(f"the parameters of tool {self.name!r} must have the type object", ("parameters", "type"))
        try:
            check_schema(self.parameters)
        except ConstraintError as error:
            raise ToolError(f"tool {self.name!r}: {error}", ("parameters",)) from None

    def as_openai(self) -> dict[str, Any]:
        """The tool as chat templates read it."""
        described = {"description": self.description} if self.description else {}
        function = {"name": self.name, **described, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool. `arguments`: a JSON object, as text."""

    name: str
    arguments: str

    @cached_property
    def values(self) -> dict[str, Any]:
        """The arguments as objects."""
        return dict(json.loads(self.arguments))


@dataclass(frozen=True)
class ToolUse:
    """Which tools a turn may call. `choice`: as OpenAI has it, or `named` says the only tool that is called.

    `parallel`: whether a turn may have several calls. Raises ToolError for names that are there twice, or not at all.
    """

    tools: tuple[Tool, ...]
    choice: Choice = "auto"
    named: str | None = None
    parallel: bool = True

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools]
        if len(names) > MAX_TOOLS:
            raise ToolError(f"at most {MAX_TOOLS} tools can be given, not {len(names)}")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ToolError(f"two tools are called {twice!r}")
        if self.named is not None and self.named not in names:
            raise ToolError(f"the named tool {self.named!r:.80} is not among the tools")
        if self.choice == "required" and not names:
            raise ToolError("a call is required, and there are no tools")

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that may be called."""
        if self.named is not None:
            return tuple(tool for tool in self.tools if tool.name == self.named)
        return () if self.choice == "none" else self.tools

    @property
    def required(self) -> bool:
        """Whether the turn must have a call."""
        return self.named is not None or self.choice == "required"


def read_tools(given: Iterable[Any]) -> tuple[Tool, ...]:
    """Tools from OpenAI's shape, with the function's fields inside `function` or beside `type`; Tools stay as they are.

    Raises ToolError whose `where` leads to the fault.
    """
    return tuple(_tool(value, i) for i, value in enumerate(given))


def _tool(value: Any, place: int) -> Tool:
    if isinstance(value, Tool):
        return value
    if not isinstance(value, Mapping) or value.get("type", "function") != "function":
        kind = value.get("type") if isinstance(value, Mapping) else type(value).__name__
        raise ToolError(f"tools are functions, and {kind!r:.60} is none that can be called here", (place, "type"))
    inner = value.get("function")
    inside = isinstance(inner, Mapping)
    function: Mapping[str, Any] = inner if isinstance(inner, Mapping) else value
    try:
        description, parameters = function.get("description"), function.get("parameters")
        empty = {"type": "object", "properties": {}}
        return Tool(function.get("name", ""), description or "", empty if parameters is None else parameters)
    except ToolError as error:
        raise error.under(place, *(("function",) if inside else ())) from None


def read_arguments(arguments: Any) -> dict[str, Any]:
    """A call's arguments in a conversation's history: an object, or its JSON. Raises ToolError."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise ToolError("a call's arguments are no JSON", ("arguments",)) from None
    if not isinstance(arguments, Mapping):
        raise ToolError("a call's arguments are a JSON object", ("arguments",))
    return dict(arguments)


def read_use(tools: Iterable[Any], choice: Any = None, parallel: bool | None = None) -> ToolUse | None:
    """Tools and a `tool_choice` in the shapes of OpenAI's APIs; None without tools. Raises ToolError."""
    read = read_tools(tools)
    parallel = parallel is not False
    if not read:
        if choice in (None, "none", "auto"):
            return None
        raise ToolError("a call is asked for, and there are no tools", ("tool_choice",))
    if choice is None or choice in ("auto", "none", "required"):
        return ToolUse(read, choice or "auto", None, parallel)
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        allowed = inner.get("tools") if isinstance(inner, Mapping) else None
        names = {_named(one) for one in allowed} if isinstance(allowed, list) else set()
        if not names or names - {tool.name for tool in read}:
            raise ToolError("allowed_tools names tools that are not there", ("tool_choice",))
        mode = inner.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise ToolError("the mode of allowed_tools is auto or required", ("tool_choice",))
        return ToolUse(tuple(tool for tool in read if tool.name in names), mode, None, parallel)
    if (name := _named(choice)) is None:
        raise ToolError("a tool_choice is auto, none, required, or names a function", ("tool_choice",))
    try:
        return ToolUse(read, "required", name, parallel=False)
    except ToolError as error:
        raise error.under("tool_choice") from None


def _named(choice: Any) -> str | None:
    """The function that a choice names."""
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return None
    inner = choice.get("function", choice)
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None
