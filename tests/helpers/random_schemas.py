"""Random JSON Schemas of the kinds that answers are asked for in, as hypothesis makes them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

NAMES = st.sampled_from(["name", "value", "key", "é", "a b", "日本", 'q"uote', "id", "tags", "n"])
WORDS = st.sampled_from(["red", "blue", "green", "ünï", "☘", "", 'a"b', "line\nbreak", "true", "12"])


def _ordered(low: int, high: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(low, high), st.integers(low, high)).map(lambda pair: (min(pair), max(pair)))


STRINGS: st.SearchStrategy[Schema] = st.one_of(
    st.just({"type": "string"}),
    _ordered(0, 12).map(lambda p: {"type": "string", "minLength": p[0], "maxLength": p[1]}),
    st.sampled_from(["^[a-c]{2,4}$", "^(ab|ba)+c$", "^\\d{3}-\\d{2}$", "^[A-Z][a-z]*$", "^x?y$"]).map(
        lambda p: {"type": "string", "pattern": p}
    ),
    st.sampled_from(["date", "time", "date-time", "uuid", "ipv4", "email"]).map(
        lambda f: {"type": "string", "format": f}
    ),
)
NUMBERS: st.SearchStrategy[Schema] = st.one_of(
    st.just({"type": "integer"}),
    st.just({"type": "number"}),
    _ordered(-1200, 1200).map(lambda p: {"type": "integer", "minimum": p[0], "maximum": p[1]}),
    _ordered(-50, 50).map(lambda p: {"type": "number", "minimum": p[0] / 4, "maximum": p[1] / 4}),
    _ordered(-9, 9).map(lambda p: {"type": "integer", "exclusiveMinimum": p[0] - 1, "exclusiveMaximum": p[1] + 1}),
)
PLAIN: st.SearchStrategy[Schema] = st.one_of(
    STRINGS,
    NUMBERS,
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.lists(st.one_of(WORDS, st.integers(-9, 99), st.booleans(), st.none()), min_size=1, max_size=5).map(
        lambda values: {"enum": _distinct(values)}
    ),
    st.one_of(WORDS, st.just({"é": ["☘", 1.5]}), st.just([1, None])).map(lambda value: {"const": value}),
)


def _distinct(values: list[Any]) -> list[Any]:
    out: list[Any] = []
    for value in values:
        if not any(type(value) is type(other) and value == other for other in out):
            out.append(value)
    return out


def _objects(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    def make(parts: tuple[dict[str, Schema], list[bool], bool]) -> Schema:
        properties, needed, closed = parts
        required = [name for name, need in zip(properties, needed, strict=False) if need]
        schema: Schema = {"type": "object", "properties": properties, "required": required[::-1]}
        return {**schema, "additionalProperties": False} if closed else schema

    flags = st.lists(st.booleans(), min_size=4, max_size=4)
    return st.tuples(st.dictionaries(NAMES, inner, max_size=4), flags, st.just(True)).map(make)


def _arrays(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    bounded = st.tuples(inner, _ordered(0, 4)).map(
        lambda p: {"type": "array", "items": p[0], "minItems": p[1][0], "maxItems": p[1][1]}
    )
    fixed = st.lists(inner, min_size=1, max_size=3).map(
        lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    )
    return st.one_of(bounded, fixed)


def _choices(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options})


SCHEMAS: st.SearchStrategy[Schema] = st.recursive(
    PLAIN, lambda inner: st.one_of(_objects(inner), _objects(inner), _arrays(inner), _choices(inner)), max_leaves=8
)
