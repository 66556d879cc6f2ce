"""The items of /v1/responses: what a client sends, as messages for the chat template."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from .conversation import TextPart, text_of
from .errors import ApiError, Unsupported

STEMS = {"reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
"""How the ids of items begin that aren't messages."""

ROLES = ("system", "developer", "user", "assistant")


class Item(BaseModel):
    """An item of the input: a message, a call or its result. Reasoning is left out, others are refused by type."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str = "message"
    role: str | None = None
    content: str | list[TextPart] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[TextPart] | None = None


def messages_of(items: str | Sequence[Item]) -> list[dict[str, Any]]:
    """Messages for the chat template. Raises ApiError or Unsupported."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[dict[str, Any]] = []
    for place, item in enumerate(items):
        field = f"input.{place}"
        if item.type == "reasoning":
            continue
        if item.type == "function_call":
            function = {"name": item.name, "arguments": item.arguments or "{}"}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append({"type": "function", "function": function})
            continue
        if item.type == "function_call_output":
            messages.append({"role": "tool", "content": text_of(item.output, f"{field}.output")})
            continue
        if item.type != "message":
            raise Unsupported(field, f"items of type {item.type[:40]!r} can't be read yet")
        if item.role not in ROLES:
            raise ApiError(400, f"the role must be one of {', '.join(ROLES)}", param=f"{field}.role")
        role = "system" if item.role == "developer" else item.role
        messages.append({"role": role, "content": text_of(item.content, f"{field}.content")})
    return messages


def as_items(items: str | Sequence[Item]) -> list[dict[str, Any]]:
    """The input as `input_items` lists it: every message with an id, its content in parts."""
    if isinstance(items, str):
        items = [Item(role="user", content=items)]
    listed = []
    for item in items:
        values = item.model_dump(exclude_none=True)
        if item.type == "message":
            kind = "output_text" if item.role == "assistant" else "input_text"
            parts = values.get("content", "")
            if isinstance(parts, str):
                parts = [{"type": kind, "text": parts}]
            values |= {"content": parts, "status": "completed"}
        values.setdefault("id", f"{STEMS.get(item.type, 'msg')}_{secrets.token_hex(12)}")
        listed.append(values)
    return listed
