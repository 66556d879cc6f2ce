"""Messages as clients send them, for the chat template."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from .errors import Unsupported
from .fields import MOST_PARTS, Body, Several


class TextPart(BaseModel):
    """A part of a message. Parts that aren't text are refused by their type."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    text: str | None = None


class ChatMessage(Body):
    """A message of a chat. `developer` is what newer models call `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[Several[TextPart], Field(max_length=MOST_PARTS)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    audio: Any = None
    annotations: Any = None
    function_call: Any = None
    tool_calls: Annotated[Several[dict[str, Any]], Field(max_length=MOST_PARTS)] | None = None
    tool_call_id: str | None = None


RESERVED = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}
TEXT_TYPES = ("text", "input_text", "output_text")


def text_of(content: str | list[TextPart] | None, field: str) -> str:
    """The text of a content, parts joined. Raises Unsupported for parts that aren't text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    for part in content:
        if part.type not in TEXT_TYPES or part.text is None:
            raise Unsupported(field, f"a content part of type {part.type[:40]!r} can't be read: the model reads text")
    return "".join(part.text or "" for part in content)


def for_template(messages: list[ChatMessage]) -> list[dict[str, Any]]:
    """Messages as `LM.encode` reads them. Raises Unsupported for what is no text, and for calls as they once were."""
    read: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        field = f"messages.{place}"
        if message.function_call or message.role == "function":
            raise Unsupported(field, "calls are told as tool_calls, and their results as messages of the role tool")
        if message.audio:
            raise Unsupported(field, "audio can't be read: the model reads text")
        role = "system" if message.role == "developer" else message.role
        entry: dict[str, Any] = {"role": role, "content": text_of(message.content, f"{field}.content")}
        if message.tool_calls:
            entry["tool_calls"] = message.tool_calls
        if message.reasoning_content is not None:
            entry["reasoning_content"] = message.reasoning_content
        read.append(entry)
    return read


def template_variables(given: dict[str, Any] | None, effort: str | None, constrained: bool = False) -> dict[str, Any]:
    """Further variables of the chat template: what the client names, and whether its effort leaves room to think.

    An answer that is `constrained` begins with what the constraint says: no thoughts, unless the client insists. The
    names that messages and tools come in by are the server's own.
    """
    variables = dict(given or {})
    if taken := sorted(variables.keys() & RESERVED):
        raise Unsupported("chat_template_kwargs", f"{', '.join(taken)} can't be given this way")
    if constrained:
        variables.setdefault("enable_thinking", False)
    if effort is not None:
        variables.setdefault("enable_thinking", effort not in ("none", "minimal"))
        variables.setdefault("reasoning_effort", effort)
    return variables
