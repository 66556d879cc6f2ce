"""How a conversation with tools is laid out for a chat template that knows no tools: all turns are plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

DESCRIPTION = """\
# Tools

You can call these tools. Each line describes one of them.
<tools>
{tools}
</tools>

Write one block like this for each call, with the tool's name and its arguments:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>
If no tool fits, answer in words. If an argument is missing, ask for it."""


def lay_out(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages in OpenAI's shape (`tool_calls`, role `tool`) and its `tools` -> messages of a role and a text.

    Raises KeyError, TypeError or ValueError for what doesn't have that shape.
    """
    out: list[Message] = []
    results = False
    for message in messages:
        role, text = message["role"], message.get("content") or ""
        if not isinstance(text, str):
            raise TypeError("a content is a text")
        if role == "tool":
            answer = f"<tool_response>\n{text}\n</tool_response>"
            if results:
                out[-1]["content"] += f"\n{answer}"
            else:
                out.append({"role": "user", "content": answer})
        else:
            calls = [_call(call["function"]) for call in message.get("tool_calls") or ()]
            out.append({"role": role, "content": "\n".join([*([text] if text else []), *calls])})
        results = role == "tool"
    if tools:
        lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
        described = DESCRIPTION.format(tools="\n".join(lines))
        if out and out[0]["role"] == "system":
            out[0]["content"] += f"\n\n{described}"
        else:
            out.insert(0, {"role": "system", "content": described})
    return out


def _call(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    name, said = json.dumps(function["name"]), json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {said}}}\n</tool_call>'
