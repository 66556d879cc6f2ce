"""Qwen3-Coder's format: a call is a function's tag with a tag for every parameter, strings as they are.

<tool_call>
<function=get_weather>
<parameter=city>
Paris
</parameter>
</function>
</tool_call>

Strings stand without quotes, everything else as JSON; a parameter's schema says which it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ToolError
from .rules import CLOSE, OPEN, Rules
from .spec import Tool, ToolCall

END = "\n</parameter>\n"

PLAIN = {"type", "properties", "required", "additionalProperties", "$defs", "definitions", "title", "description"}
"""What a tool's schema may say of its parameters as a whole: the format has no way to follow more."""

NOTES = {"type", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>\n(.*?)</function>\s*", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>\n", re.DOTALL)

FORMATS = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}",
}
FORMATS["date-time"] = f"{FORMATS['date']}T{FORMATS['time']}"
"""Formats of strings as patterns: all that match are valid; not all that is valid matches (no 31st of a month)."""


class Tagged:
    """Calls as functions and parameters in tags."""

    name = "tagged"

    def rule(self, rules: Rules, tool: Tool) -> str:
        """Add what a call of a tool looks like after OPEN to a grammar; returns its rule's name.

        Raises ToolError for schemas that say more of an object than its properties.
        """
        if beyond := tool.parameters.keys() - PLAIN - {"$schema", "strict"}:
            raise ToolError(
                f"tool {tool.name!r}: this model writes parameters one by one, which can't follow {min(beyond)!r}"
            )
        properties, required = _properties(tool.parameters), tool.parameters.get("required") or ()
        if missing := set(required) - properties.keys():
            raise ToolError(f"tool {tool.name!r} requires {min(missing)!r}, which is none of its properties")
        parts = []
        for name, schema in properties.items():
            if not re.fullmatch(r"[^>\n]+", name):
                raise ToolError(f"tool {tool.name!r}: no tag can hold the name {name!r}")
            part = f"{rules.literal(f'<parameter={name}>{chr(10)}')} {_value(rules, tool, schema)}"
            parts.append(part if name in required else f"({part})?")
        head, tail = rules.literal(f"\n<function={tool.name}>\n"), rules.literal(f"</function>\n{CLOSE}")
        return rules.add(rules.fresh("tool"), " ".join([head, *parts, tail]))

    def read(self, body: str, tools: Sequence[Tool]) -> ToolCall:
        """The call between OPEN and CLOSE. Raises ToolError if it is none, or of a tool that isn't there."""
        if (function := _FUNCTION.fullmatch(body)) is None:
            raise ToolError("the call has no function")
        tool = next((tool for tool in tools if tool.name == function[1]), None)
        if tool is None:
            raise ToolError(f"there is no tool {function[1]!r:.80}")
        values: dict[str, str] = {}
        properties = _properties(tool.parameters)
        for name, text in _PARAMETER.findall(function[2]):
            if name in values:
                raise ToolError("an argument is there twice")
            values[name] = _read(text, properties.get(name, {}))
        if rest := _PARAMETER.sub("", function[2]).strip():
            raise ToolError(f"{rest!r:.60} is no parameter")
        members = (f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in values.items())
        return ToolCall(tool.name, f"{{{', '.join(members)}}}")

    def write(self, call_name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the model would write it, from OPEN to CLOSE."""
        parts = [
            f"<parameter={name}>\n{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}{END}"
            for name, value in arguments.items()
        ]
        return f"{OPEN}\n<function={call_name}>\n{''.join(parts)}</function>\n{CLOSE}"


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    given = schema.get("properties")
    return dict(given) if isinstance(given, Mapping) else {}


def _is_text(schema: Any) -> bool:
    """Whether a value is a string and nothing else, so that it stands without quotes."""
    if not isinstance(schema, Mapping):
        return False
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list):
        return all(isinstance(choice, str) for choice in choices)
    return schema.get("type") == "string"


def _value(rules: Rules, tool: Tool, schema: Any) -> str:
    """A parameter's value and its end."""
    if not _is_text(schema):
        definitions = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
        inner = dict(schema) if isinstance(schema, Mapping) else {}
        return f"{rules.json({**inner, **definitions})} {rules.literal(END)}"
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None:
        return "(" + " | ".join(rules.literal(choice + END) for choice in choices) + ")"
    beyond = schema.keys() - NOTES
    if beyond == {"pattern"}:
        return rules.text_until(END, _whole(schema["pattern"]))
    if beyond == {"format"} and schema["format"] in FORMATS:
        return rules.text_until(END, FORMATS[schema["format"]])
    if beyond <= {"minLength", "maxLength"}:
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        return rules.text_until(END, f"(?s:.{{{least},{most}}})" if beyond else "(?s:.*)")
    raise ToolError(f"tool {tool.name!r}: a text parameter can't follow {', '.join(sorted(beyond))} in this format")


def _whole(pattern: str) -> str:
    """A pattern that may match anywhere, as one for a whole text."""
    start = "" if pattern.startswith("^") else "(?s:.*)"
    end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    inner = pattern.removeprefix("^")
    inner = inner if end else inner.removesuffix("$")
    return f"{start}({inner}){end}".replace("/", "\\/")


def _read(text: str, schema: Any) -> str:
    """A value as JSON."""
    if not _is_text(schema):
        try:
            json.loads(text)
            return text
        except (ValueError, RecursionError):
            pass
    return json.dumps(text, ensure_ascii=False)
