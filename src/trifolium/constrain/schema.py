"""What can be told of a JSON Schema before it is compiled: its size, and whether anything finite satisfies it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from ..errors import ConstraintError

MAX_DEPTH = 100
"""Objects and arrays inside each other. What compiles schemas does so recursively."""

MAX_NODES = 8_000
"""Objects, arrays and values of a schema."""

MAX_COUNT = 2_000
"""The largest minItems, maxItems, minProperties and maxProperties: each item is a part of the grammar."""

MAX_LENGTH = 100_000
"""The largest minLength and maxLength, in characters; a context holds no longer texts."""

_COUNTS = {"minItems": MAX_COUNT, "maxItems": MAX_COUNT, "minProperties": MAX_COUNT, "maxProperties": MAX_COUNT}
_LENGTHS = {"minLength": MAX_LENGTH, "maxLength": MAX_LENGTH}


def check_schema(schema: Any) -> None:
    """Raises ConstraintError if a schema is too large or too deep, or can have no finite instance (by its `$ref`s)."""
    _check_size(schema)
    if not _Finite(schema).check(schema):
        raise ConstraintError(
            "nothing finite satisfies the schema: it requires itself, inside itself, without end. "
            "Make a property of the cycle optional, or give it an alternative"
        )


def closed(schema: Any) -> Any:
    """The schema with `additionalProperties: false` in every object that lists properties and doesn't say otherwise."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {
        key: {name: closed(part) for name, part in value.items()}
        if key in ("properties", "$defs") and isinstance(value, dict)
        else closed(value)
        for key, value in schema.items()
        if key not in ("const", "enum", "default", "examples")
    }
    out |= {key: schema[key] for key in ("const", "enum", "default", "examples") if key in schema}
    if isinstance(out.get("properties"), dict) and not {"additionalProperties", "patternProperties"} & out.keys():
        out["additionalProperties"] = False
    return out


def _check_size(schema: Any) -> None:
    """Bounds nesting, the number of nodes, and counts, without recursion."""
    nodes, stack = 0, [(schema, 0)]
    while stack:
        node, depth = stack.pop()
        nodes += 1
        if depth > MAX_DEPTH:
            raise ConstraintError(f"the schema is nested more than {MAX_DEPTH} deep")
        if nodes > MAX_NODES:
            raise ConstraintError(f"the schema has more than {MAX_NODES:,} parts")
        if isinstance(node, Mapping):
            for key, limit in (_COUNTS | _LENGTHS).items():
                value = node.get(key)
                if isinstance(value, (int, float)) and value > limit:
                    raise ConstraintError(f"the schema's {key} is {value:,}, and at most {limit:,} is allowed")
            stack += [(value, depth + 1) for value in node.values()]
        elif isinstance(node, (list, tuple)):
            stack += [(value, depth + 1) for value in node]


class _Finite:
    """Which parts of a schema can be completed: the least fixpoint, starting with nothing.

    A part that this doesn't understand counts as completable: whether it is, the compiler says.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: set[str] = set()  # targets of references that can be completed
        self._targets = {ref: target for ref in _references(root) if (target := self._resolve(ref)) is not None}

    def check(self, schema: Any) -> bool:
        """Whether `schema` has a finite instance."""
        growing = True
        while growing:
            found = {r for r, target in self._targets.items() if r not in self._known and self._completes(target)}
            self._known |= found
            growing = bool(found)
        return self._completes(schema)

    def _completes(self, schema: Any) -> bool:
        if not isinstance(schema, Mapping) or "enum" in schema or "const" in schema:
            return True
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref in self._targets and ref not in self._known:
            return False
        if not all(self._completes(part) for part in _schemas(schema.get("allOf"))):
            return False
        for key in ("anyOf", "oneOf"):
            if (options := _schemas(schema.get(key))) and not any(self._completes(option) for option in options):
                return False
        if _only(schema, "object"):
            properties = schema.get("properties")
            properties = properties if isinstance(properties, Mapping) else {}
            required = schema.get("required")
            names = required if isinstance(required, Sequence) and not isinstance(required, str) else ()
            if not all(self._completes(properties[name]) for name in names if name in properties):
                return False
        if _only(schema, "array"):
            least = schema.get("minItems", 0)
            first = _schemas(schema.get("prefixItems"))
            if isinstance(least, int) and least > 0:
                if not all(self._completes(item) for item in first[:least]):
                    return False
                if least > len(first) and not self._completes(schema.get("items", True)):
                    return False
        return True

    def _resolve(self, ref: str) -> Any:
        """What a reference inside the schema (`#`, `#/...`) points to; None for others, which the compiler judges."""
        if not ref.startswith("#") or (len(ref) > 1 and ref[1] != "/"):
            return None
        node = self._root
        for part in unquote(ref[2:]).split("/") if len(ref) > 1 else ():
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping) and part in node:
                node = node[part]
            elif isinstance(node, Sequence) and not isinstance(node, str) and part.isdigit() and int(part) < len(node):
                node = node[int(part)]
            else:
                raise ConstraintError(f"the schema refers to {ref!r}, which isn't there")
        return node


def _only(schema: Mapping[str, Any], kind: str) -> bool:
    """Whether instances must be of this type."""
    given = schema.get("type")
    return given == kind or (isinstance(given, Sequence) and list(given) == [kind])


def _schemas(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []


def _references(node: Any) -> Iterator[str]:
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Mapping):
            if isinstance(ref := node.get("$ref"), str):
                yield ref
            stack += node.values()
        elif isinstance(node, (list, tuple)):
            stack += node
