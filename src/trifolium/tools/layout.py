"""Conversations with tools, for chat templates that know tools and for those that don't."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import ToolError
from .formats import ToolFormat
from .spec import Tool, read_arguments

Message = dict[str, Any]

RULES = """\
# Tools

You can call these tools. Each line describes one of them.
<tools>
{tools}
</tools>

Write one block like this for each call, with the tool's name and its arguments:
{example}
If no tool fits, answer in words. If an argument is missing, ask for it."""


def knows_tools(template: str | None) -> bool:
    """Whether a chat template lays out tools and calls by itself, in a format that is read here."""
    source = template or ""
    return "tools" in source and "<tool_call>" in source


def lay_out(
    template: str | None, format: ToolFormat, messages: Iterable[Mapping[str, Any]], tools: Sequence[Tool]
) -> list[Message]:
    """Messages in OpenAI's shape (`tool_calls`, role `tool`) as the template reads them.

    A template that knows tools gets calls with their arguments as objects. For others, tools are described in the
    system's turn, calls are the assistant's text, and results are the user's. Raises ToolError for broken calls.
    """
    checked = [_checked(message, i) for i, message in enumerate(messages)]
    return checked if knows_tools(template) else _as_text(format, checked, tools)


def _checked(message: Mapping[str, Any], place: int) -> Message:
    calls = message.get("tool_calls") or ()
    checked = {key: value for key, value in message.items() if key != "tool_calls"}
    if not calls:
        return checked
    read = []
    for i, call in enumerate(calls):
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ToolError("a call has a function with a name", (place, "tool_calls", i))
        try:
            arguments = read_arguments(function.get("arguments", {}))
        except ToolError as error:
            raise error.under(place, "tool_calls", i, "function") from None
        read.append({"type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return {**checked, "content": checked.get("content") or "", "tool_calls": read}


def _as_text(format: ToolFormat, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """The conversation as plain turns of text."""
    out: list[Message] = []
    for message in messages:
        content = message.get("content") or ""
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        if message.get("tool_calls"):
            calls = [format.write(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
            out.append({**_without(message), "content": "\n".join([*([text] if text else []), *calls])})
        elif message.get("role") == "tool":
            answer = f"<tool_response>\n{text}\n</tool_response>"
            if out and out[-1].get("results"):
                out[-1]["content"] += f"\n{answer}"
            else:
                out.append({"role": "user", "content": answer, "results": True})
        else:
            out.append(dict(message))
    for message in out:
        message.pop("results", None)
    if tools:
        described = _described(format, tools)
        if out and out[0].get("role") in ("system", "developer"):
            out[0] = {**out[0], "content": f"{out[0]['content']}\n\n{described}"}
        else:
            out.insert(0, {"role": "system", "content": described})
    return out


def _without(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "tool_calls"}


def _described(format: ToolFormat, tools: Sequence[Tool]) -> str:
    lines = [json.dumps(tool.as_openai()["function"], ensure_ascii=False) for tool in tools]
    return RULES.format(tools="\n".join(lines), example=format.write("NAME", {"ARGUMENT": "VALUE"}))
