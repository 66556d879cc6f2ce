"""Constraints as clients ask for them: `response_format`, `text.format`, `output_config.format`, and `guided_*`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ..constrain import Constraint, grammar, json_schema, regex
from ..errors import ConstraintError
from .errors import ApiError, Unsupported

T = TypeVar("T")

GUIDED = ("guided_json", "guided_regex", "guided_grammar", "guided_choice")
MOST_CHOICES = 1000


def of_format(value: Mapping[str, Any] | None, field: str) -> Constraint | None:
    """The constraint of an API's format object; None for plain text.

    `json_schema` objects have their schema beside the type, or inside a `json_schema` of their own (chat). Schemas are
    followed exactly, `strict` or not. Raises ApiError that names the field.
    """
    kind = "text" if value is None else value.get("type")
    if value is None or kind == "text":
        return None
    if kind == "json_object":
        return made(json_schema, {"type": "object"}, field)
    if kind == "json_schema":
        inner = value.get("json_schema")
        holder, where = (inner, f"{field}.json_schema") if isinstance(inner, Mapping) else (value, field)
        if "schema" not in holder:
            raise ApiError(400, "the format has no schema", param=f"{where}.schema", code="invalid_schema")
        return made(json_schema, holder["schema"], f"{where}.schema")
    raise Unsupported(f"{field}.type", "formats are text, json_object and json_schema")


def guided(values: Mapping[str, Any]) -> tuple[Constraint | None, str]:
    """The constraint of the `guided_*` fields, of which one may be given, and its field's name. Raises ApiError."""
    given = [name for name in GUIDED if values.get(name) is not None]
    if len(given) > 1:
        raise ApiError(400, f"only one of {', '.join(given)} can be followed", param=given[1])
    if not given:
        return None, ""
    (name,) = given
    value = values[name]
    if name == "guided_json":
        return made(json_schema, value, name), name
    if name == "guided_regex":
        return made(regex, value, name), name
    if name == "guided_grammar":
        return made(grammar, value, name), name
    return _choice(value, name), name


def made(make: Callable[[Any], T], value: Any, field: str) -> T:
    """What `make` makes of a value; its ConstraintError as an ApiError that names the field."""
    try:
        return make(value)
    except ConstraintError as error:
        raise ApiError(400, str(error), param=field, code="invalid_schema") from None


def _choice(choices: Any, field: str) -> Constraint:
    """One of several texts, as it stands."""
    fine = isinstance(choices, list) and all(isinstance(choice, str) and choice for choice in choices)
    if not fine or not 1 <= len(choices) <= MOST_CHOICES:
        raise ApiError(400, f"choices are 1 to {MOST_CHOICES} texts that aren't empty", param=field)
    texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return made(grammar, f"start: {texts}", field)
