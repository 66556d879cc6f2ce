"""The filters and string methods that chat templates get: metered, guarded, and keeping track of foreign text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Context

from .meter import METER, Limits, Meter, too_large
from .provenance import adopt, is_foreign, join

__all__ = [
    "CHECK",
    "CONCAT",
    "STRING_METHODS",
    "TICK",
    "as_text",
    "bounded_join",
    "filters",
    "guard",
    "guard_percent",
    "interleave",
]

# Filters of the syntax tree itself: no template can name them, since names hold no spaces.
TICK, CHECK, CONCAT = "tick now", "check value", "concat parts"

# Of jinja2's filters, those that chat templates have a use for. Left out are those that make markup, pick at random,
# or take long for each character. These hand on what they were given, or parts of it: of a container, no new text.
_SELECTING = frozenset(
    {"attr", "batch", "d", "default", "dictsort", "first", "groupby", "items", "last", "list", "map", "max", "min"}
    | {"reject", "rejectattr", "reverse", "select", "selectattr", "slice", "sort", "sum", "unique"}
)
_MAKING = frozenset(
    {"abs", "capitalize", "count", "float", "format", "indent", "int", "length", "lower", "replace", "round", "title"}
    | {"tojson", "truncate", "upper"}
)
_TRACKING = frozenset({"d", "default", "join", "safe", "string", "trim"})  # keep track of foreign text by themselves

STRING_METHODS = frozenset(
    {"capitalize", "casefold", "center", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii"}
    | {"isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper"}
    | {"join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex"}
    | {"rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title"}
    | {"upper", "zfill"}
)


def filters() -> dict[str, Callable[..., Any]]:
    """All filters of a sandbox, by name."""
    known: dict[str, Callable[..., Any]] = {name: FILTERS[name] for name in _SELECTING | _MAKING}
    known |= {"join": _join, "safe": as_text, "string": as_text, "tojson": _tojson, "trim": _trim}
    return {name: _metered(name, function) for name, function in known.items()} | {
        TICK: _tick,
        CHECK: _check,
        CONCAT: _concat,
    }


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    wanted = getattr(getattr(function, "jinja_pass_arg", None), "name", None)  # what jinja2 would pass first

    @pass_context
    def run(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        meter: Meter = context.parent[METER]
        meter.tick()
        guard(name, value, args, kwargs, meter.limits)
        available = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        result = function(*([available[wanted]] if wanted else []), value, *args, **kwargs)
        if isinstance(result, Iterator):
            result = [meter.spend(item) for item in result]
        selects = name in _SELECTING and not isinstance(value, str)
        if not selects and name not in _TRACKING and is_foreign([value, *args, *kwargs.values()]):
            result = adopt(result)
        return meter.spend(result)

    return run


@pass_context
def _tick(context: Context, value: Any) -> Any:
    context.parent[METER].tick()
    return value


@pass_context
def _check(context: Context, value: Any) -> Any:
    return context.parent[METER].spend(value)


@pass_context
def _concat(context: Context, parts: list[Any]) -> Any:
    return context.parent[METER].spend(join(as_text(part) for part in parts))


def as_text(value: Any) -> str:
    """What `{{ value }}` shows; foreign as a whole if it is a container with foreign text in it."""
    if isinstance(value, str):
        return value
    return str(adopt(str(value))) if is_foreign(value) else str(value)


def bounded_join(parts: Iterable[str], limits: Limits) -> str:
    """The parts one after the other. Raises SecurityError before the text gets too large."""
    kept: list[str] = []
    length = 0
    for part in parts:
        kept.append(part)
        length += len(part) + 1
        if length > limits.value:
            raise too_large(limits)
    return join(kept)


def interleave(separator: str, items: Iterable[str]) -> Iterator[str]:
    """The items with the separator between them."""
    for place, item in enumerate(items):
        if place:
            yield separator
        yield item


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = [context.environment.getitem(item, attribute) for item in value]
    return bounded_join(interleave(as_text(d), map(as_text, value)), context.parent[METER].limits)


def _trim(value: Any, chars: str | None = None) -> str:
    return as_text(value).strip(chars)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own would escape for HTML, which no model expects."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def guard(name: str, value: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limits: Limits) -> None:
    """Refuse a filter or string method whose result would be far larger than what goes in. Raises SecurityError.

    `value` is the filter's input, or the string whose method is called.
    """
    given = [*args, *kwargs.values()]
    if name in ("indent", "tojson"):
        columns = [item if isinstance(item, int) else len(item) for item in given if isinstance(item, int | str)]
        if max(columns, default=0) > 32:
            raise SecurityError(f"the template asks '{name}' for more than 32 columns")
    elif name in ("center", "ljust", "rjust", "zfill", "truncate", "batch", "slice", "round"):
        if any(isinstance(item, int) and abs(item) > limits.width for item in given):
            raise SecurityError(f"the template asks '{name}' for more than {limits.width}")
    elif name == "replace" and len(given) >= 2:
        text, old, new = as_text(value), as_text(given[0]), as_text(given[1])
        if len(text) + text.count(old) * len(new) > limits.value:
            raise too_large(limits)
    elif name == "sum" and any(not isinstance(item, int | float | str) for item in given):
        raise SecurityError("in a template, 'sum' adds numbers only")
    elif name == "format":
        guard_percent(as_text(value), limits)


def guard_percent(pattern: str, limits: Limits) -> None:
    """Refuse a `%` pattern that pads far. Raises SecurityError."""
    for width in re.findall(r"%[^a-zA-Z%]*?(\*|\d+)", pattern):
        if width == "*" or int(width[:9]) > limits.width:
            raise SecurityError(f"the template formats with a width of more than {limits.width}")
