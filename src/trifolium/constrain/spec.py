"""What an answer must look like, as a caller says it: a JSON Schema, a regular expression, or a grammar.

A `Constraint` is a value: frozen, hashable, cheap to make. Making one checks what can be told without a model, in
bounded time; an engine compiles it for its tokenizer, and keeps what it compiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel

from ..errors import ConstraintError
from .lark import check_grammar, to_lark
from .schema import check_schema, closed

__all__ = ["Constraint", "grammar", "json_schema", "regex"]

MAX_BYTES = 1 << 18
"""Size of a schema, pattern or grammar, in UTF-8: 256 KiB. Compiling takes time by size."""

MAX_PATTERN_DEPTH = 100
"""Parentheses inside each other. What compiles patterns does so recursively."""

Schema = Mapping[str, Any] | bool | str | type[BaseModel]


@dataclass(frozen=True)
class Constraint:
    """One of `json_schema`, `regex` and `grammar` makes it. Equal constraints are compiled once.

    `text`: the schema as compact JSON, the pattern, or the grammar in Lark's notation. `whitespace`: a pattern for the
    white space that JSON may have between its parts; None for none. `model`: the pydantic model that the schema came
    from, which `parse` makes objects of.
    """

    kind: Literal["schema", "regex", "grammar"]
    text: str
    whitespace: str | None = None
    model: type[BaseModel] | None = field(default=None, compare=False)

    def parse(self, answer: str) -> Any:
        """The object that a complete answer stands for: the model's instance, or what the JSON holds; None without a
        schema. Raises pydantic's ValidationError where the model asks for more than its schema says."""
        if self.kind != "schema":
            return None
        return json.loads(answer) if self.model is None else self.model.model_validate_json(answer)


def json_schema(schema: Schema, *, whitespace: str | None = None) -> Constraint:
    """Answers are JSON that this schema (draft 2020-12) describes: an object, a JSON text, or a pydantic model class.

    JSON is written without white space unless `whitespace` is a pattern for it, as in `[ ]?`. It must bound what it
    matches, or answers could go on with blanks for ever. Members come in the order of `properties`. A model's objects
    have no members but its fields; a schema's do where it doesn't say `"additionalProperties": false`.
    Raises ConstraintError: no JSON, too large, too deep, or nothing can satisfy it.
    """
    model = schema if isinstance(schema, type) else None
    if isinstance(schema, type):
        if not issubclass(schema, BaseModel):
            raise ConstraintError(f"a schema is an object, JSON text or a pydantic model class, not {schema!r}")
        schema = closed(schema.model_json_schema())
    if isinstance(schema, str):
        _check_size(schema, "schema")
        try:
            schema = json.loads(schema, parse_constant=_no_constant)
        except RecursionError:
            raise ConstraintError("the schema is nested too deeply") from None
        except ValueError as error:
            raise ConstraintError(f"the schema is not JSON: {error}") from None
    if not isinstance(schema, (Mapping, bool)):
        raise ConstraintError(f"a schema is a JSON object, true or false, not {type(schema).__name__}")
    if schema is False:
        raise ConstraintError("nothing satisfies the schema false")
    schema = {} if schema is True else schema
    check_schema(schema)
    try:
        text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConstraintError(f"the schema holds what JSON can't: {error}") from None
    _check_size(text, "schema")
    if whitespace is not None:
        _check_whitespace(whitespace)
    return Constraint("schema", text, whitespace, model)


def regex(pattern: str) -> Constraint:
    """Answers match this regular expression as a whole (Rust's syntax: no look-around, no back-references).

    Raises ConstraintError if it is too large or too deep; what can't be compiled is refused by the engine.
    """
    _check_size(pattern, "regex")
    _check_depth(pattern, "regex")
    return Constraint("regex", pattern)


def grammar(text: str) -> Constraint:
    """Answers are sentences of this grammar: Lark's notation (rules `name: ...`), or GBNF's (`name ::= ...`).

    The first rule that counts is `start`, or `root` in GBNF. Raises ConstraintError if it is too large, too deep, or
    has a rule that no text can ever complete.
    """
    _check_size(text, "grammar")
    _check_depth(text, "grammar")
    text = to_lark(text)
    check_grammar(text)
    return Constraint("grammar", text)


def _check_size(text: str, what: str) -> None:
    if not isinstance(text, str) or not text:
        raise ConstraintError(f"the {what} is empty")
    if (size := len(text.encode("utf-8", "surrogatepass"))) > MAX_BYTES:
        raise ConstraintError(f"the {what} has {size:,} bytes, and at most {MAX_BYTES:,} are allowed")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConstraintError(f"the {what} holds a lone surrogate, which is no text") from None


def _check_depth(text: str, what: str) -> None:
    depth = 0
    for character in text:
        # Escapes and classes are counted too: an upper bound will do.
        depth += (character in "([{") - (character in ")]}" and depth > 0)
        if depth > MAX_PATTERN_DEPTH:
            raise ConstraintError(f"the {what} is nested more than {MAX_PATTERN_DEPTH} deep")


def _check_whitespace(pattern: str) -> None:
    import re

    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConstraintError(f"the pattern for white space is no regular expression: {error}") from None
    if any(compiled.fullmatch(blank * 1000) for blank in " \n\t\r"):
        raise ConstraintError(f"white space as in {pattern!r} has no end: bound it, as in [ ]{{0,2}}")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
