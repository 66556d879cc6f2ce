"""Chat messages to text and token ids, by the template that comes with a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from ..errors import TemplateError
from .meter import METER, Limits, Meter
from .provenance import Foreign, foreign, join
from .sandbox import Sandbox
from .tokenizer import Tokenizer

__all__ = ["CHATML", "ROLES", "ChatTemplate", "encode_chat"]

ROLES = ("system", "developer", "user", "assistant", "tool")

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


class ChatTemplate:
    """A compiled chat template, run in a sandbox that bounds its time, memory and output. Threads may share it.

    `source`: jinja; None stands for ChatML, and `is_default` says so. Raises TemplateError if the source is broken.
    """

    def __init__(
        self, source: str | None, bos_token: str = "", eos_token: str = "", *, limits: Limits | None = None
    ) -> None:
        self.is_default = source is None
        self.source = CHATML if source is None else source
        self._limits = limits or Limits()
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = Sandbox(self._limits).load(self.source)
        except Exception as error:  # whatever is wrong in here, the template is
            raise TemplateError(f"the chat template can't be compiled: {_reason(error)}") from None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The template that came with a tokenizer, or ChatML if none did."""
        return cls(tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,  # further variables may have any name
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The text that the model reads. `kwargs` are further variables of the template.

        A message has a `role` (one of ROLES) and a `content`: a string, or a list of `{"type": "text", "text": ...}`.
        Raises TemplateError if the messages are malformed, or if the template refuses them or uses too much.
        """
        return str.__str__(self._render(messages, add_generation_prompt, tools, kwargs))

    def render_tracked(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,  # further variables may have any name
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> tuple[str, list[tuple[int, int]]]:
        """As `render`, with the (start, stop) ranges of the text that are the template's own.

        All text in messages (but for their roles), tools and further variables is foreign.
        """
        text = self._render(messages, add_generation_prompt, tools, kwargs)
        own = text.own() if isinstance(text, Foreign) else [(0, len(text))]
        return str.__str__(text), own

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
    ) -> str:
        checked = _checked(messages)
        meter = Meter(self._limits)
        try:
            variables = {
                **self._tokens,
                **{name: foreign(value) for name, value in kwargs.items()},
                # A role is one of ROLES, and templates build markers from it.
                "messages": [{**foreign(message), "role": message["role"]} for message in checked],
                "tools": foreign(tools),
                "add_generation_prompt": add_generation_prompt,
                METER: meter,
            }
            parts: list[str] = []
            length = 0
            for part in self._template.generate(variables):
                meter.tick()
                parts.append(part)
                length += len(part)
                if length > self._limits.value:
                    raise TemplateError(f"the chat template writes more than {self._limits.value} characters")
            return join(parts)
        except TemplateError:
            raise
        except Exception as error:  # whatever is wrong in here, the template is
            raise TemplateError(f"the chat template failed: {_reason(error)}") from None


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    /,
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **kwargs: Any,
) -> list[int]:
    """Token ids of a chat. Special tokens come from the template only: in the messages they are plain text.

    Raises what `ChatTemplate.render` does.
    """
    text, own = template.render_tracked(messages, add_generation_prompt=add_generation_prompt, tools=tools, **kwargs)
    return tokenizer.encode_spans(text, own)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or calls itself without end"
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {error.message}"
    return str(error) or type(error).__name__


def _checked(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence) or not messages:
        raise TemplateError("messages must be a list of at least one message with a 'role' and a 'content'")
    return [_checked_message(message, f"message {place}") for place, message in enumerate(messages, 1)]


def _checked_message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"{where} must be an object with a 'role' and a 'content', not {type(message).__name__}")
    role = message.get("role")
    if role not in ROLES:
        raise TemplateError(f"{where} has the role {role!r}; known roles: {', '.join(ROLES)}")
    # A key without a value says the same as no key, but templates would print it as "None".
    checked = {key: value for key, value in message.items() if value is not None}
    content = checked.get("content")
    if content is None and checked.get("tool_calls"):
        return checked
    if isinstance(content, str):
        return checked
    if not isinstance(content, list | tuple):
        raise TemplateError(f"{where} must have a 'content': a string, or a list of text parts")
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise TemplateError(f'{where}: a part of the content must be {{"type": "text", "text": "..."}}')
    # Every template takes a string; few take parts.
    return {**checked, "content": "".join(part["text"] for part in content)}
