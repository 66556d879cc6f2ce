"""JSON Schemas: the corner cases, what is refused, and that it takes a bounded time."""

from __future__ import annotations

import json
import time
from typing import Literal

import pytest
from pydantic import BaseModel, Field
from test_grammars import matches

from structured_engine import END, json_tokenizer
from trifolium.constrain import Constraint, json_schema
from trifolium.errors import ConstraintError

S = {"type": "string"}
I = {"type": "integer"}  # noqa: E741


def closed(required=None, **properties):
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


CASES = {
    "ref cycle": (
        {"$defs": {"n": closed(["v"], v=I, next={"$ref": "#/$defs/n"})}, "$ref": "#/$defs/n"},
        ['{"v":1}', '{"v":1,"next":{"v":2,"next":{"v":3}}}'],
        ["{}", '{"next":{"v":1}}', '{"v":1,"next":{}}', '{"v":1,"next":null}'],
    ),
    "anyOf": ({"anyOf": [S, closed(a=I)]}, ['"x"', '{"a":1}'], ["1", "{}", '{"a":"x"}']),
    "oneOf": (
        {"oneOf": [closed(kind={"const": "a"}, x=I), closed(kind={"const": "b"}, y=S)]},
        ['{"kind":"a","x":1}', '{"kind":"b","y":""}'],
        ['{"kind":"a","y":""}', '{"kind":"c"}'],
    ),
    "allOf": (
        {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]},
        ["3", "7"],
        ["2", "8", '"5"'],
    ),
    "pattern": ({"type": "string", "pattern": "^a[bc]+$"}, ['"abcb"'], ['"a"', '"xab"', '"abx"']),
    "pattern anywhere": ({"type": "string", "pattern": "b[0-9]"}, ['"b1"', '"aab2cc"'], ['"b"', '"1b"']),
    "date": ({"type": "string", "format": "date"}, ['"2024-02-28"'], ['"2024-2-28"', '"2024-13-01"', '"x"']),
    "uuid": (
        {"type": "string", "format": "uuid"},
        ['"123e4567-e89b-42d3-a456-426614174000"'],
        ['"123e4567-e89b-42d3-a456-42661417400"'],
    ),
    "enum": (
        {"enum": ["grün", "☘", 'q"', 3, None, [1]]},
        ['"grün"', '"☘"', '"q\\""', "3", "null", "[1]"],
        ['"gru"', "4"],
    ),
    "const": ({"const": {"é": ["日本", 1.5]}}, ['{"é":["日本",1.5]}'], ['{"é":[]}', "{}"]),
    "items": (
        {"type": "array", "items": I, "minItems": 2, "maxItems": 3},
        ["[1,2]", "[1,2,3]"],
        ["[]", "[1]", "[1,2,3,4]", "[1,2,]"],
    ),
    "prefix": (
        {"type": "array", "prefixItems": [S, I], "items": False, "minItems": 2},
        ['["a",1]'],
        ['["a"]', '["a",1,2]', '[1,"a"]'],
    ),
    "open object": (
        {"type": "object", "properties": {"a": I}, "required": ["a"]},
        ['{"a":1}', '{"a":1,"b":null}'],
        ['{"b":null}', '{"a":null}'],
    ),
    "typed rest": ({"type": "object", "additionalProperties": I}, ["{}", '{"x":1,"y":2}'], ['{"x":""}']),
    "required against order": (
        {**closed(["b", "a"], a=S, b=I, c=S)},
        ['{"a":"","b":1}', '{"a":"","b":1,"c":""}'],
        ['{"b":1,"a":""}', '{"a":""}', '{"b":1}'],
    ),
    "bounds": (
        {"type": "number", "exclusiveMinimum": 0.5, "maximum": 2},
        ["1", "0.51", "2", "1.999"],
        ["0.5", "0", "2.01", "-1"],
    ),
    "integers": (
        {"type": "integer", "minimum": -12, "maximum": 105},
        ["-12", "0", "105"],
        ["-13", "106", "007", "1.5"],
    ),
    "multiples": ({"type": "integer", "multipleOf": 7, "minimum": 0}, ["0", "7", "140"], ["1", "15"]),
    "lengths": ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"日本☘"', '"\\n\\n"'], ['"a"', '"abcd"']),
    "types": ({"type": ["integer", "null"]}, ["1", "null"], ['""', "true"]),
    "anything": ({}, ["1", '{"a":[null,{"b":"c"}]}', '""'], ["", "{", "nul"]),
    "boolean true": (True, ["[]"], ["["]),
}


@pytest.mark.parametrize("name", CASES)
def test_corner_cases(compiler, name):
    schema, good, bad = CASES[name]
    constraint = json_schema(schema)
    for text in good:
        assert matches(compiler, constraint, text), text
    for text in bad:
        assert not matches(compiler, constraint, text), text


def test_there_is_no_endless_white_space(compiler):
    compact = json_schema(closed(a=I))
    assert not matches(compiler, compact, '{"a": 1}') and not matches(compiler, compact, ' {"a":1}')
    bounded = json_schema(closed(a=I), whitespace=r"[ ]{0,2}")
    assert matches(compiler, bounded, '{"a":  1 }') and not matches(compiler, bounded, '{"a":   1}')
    for endless in (r"[ ]*", r"\s+", r"( |\n)+"):
        with pytest.raises(ConstraintError, match="no end"):
            json_schema(closed(a=I), whitespace=endless)


def test_long_strings_are_possible(compiler):
    constraint = json_schema({"type": "string", "minLength": 3000})
    assert matches(compiler, constraint, '"' + "ab c" * 750 + '"')
    assert not matches(compiler, constraint, '"' + "ab c" * 749 + '"')


def test_tokens_may_cross_literals(compiler):
    """`":"` is one token: the end of a literal, and the beginning of a value."""
    guide = compiler.guide(json_schema(closed(n=S)))
    for token in json_tokenizer().encode('{"n'):
        guide.push(token)
    crossing = json_tokenizer().encode('":"')
    assert len(crossing) == 1 and crossing[0] in guide.after()


class Colour(BaseModel):
    name: Literal["red", "blüe"]
    share: float = Field(ge=0, le=1)


class Palette(BaseModel):
    title: str = Field(max_length=9)
    colours: list[Colour] = Field(min_length=1, max_length=2)
    parent: Palette | None


def test_pydantic_models_are_schemas(compiler):
    constraint = json_schema(Palette)
    text = '{"title":"t","colours":[{"name":"blüe","share":0.5}],"parent":null}'
    assert matches(compiler, constraint, text)
    palette = constraint.parse(text)
    assert isinstance(palette, Palette) and palette.colours[0].share == 0.5
    assert json_schema(json.dumps(closed(a=I))).parse('{"a":1}') == {"a": 1}
    assert not matches(compiler, json_schema(Colour), '{"name":"red","share":1,"more":2}')
    assert json_schema(Palette) == json_schema(Palette) and hash(constraint) == hash(json_schema(Palette))


REFUSED = {
    "false": (False, "false"),
    "min over max": ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength"),
    "no type is left": ({"allOf": [S, I]}, "Unsatisfiable"),
    "empty enum": ({"enum": []}, "Unsatisfiable"),
    "bounds": ({"type": "integer", "minimum": 3, "maximum": 2}, "Unsatisfiable"),
    "no integer between": ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "Unsatisfiable"),
    "required but forbidden": (closed(["z"], a=S), "z"),
    "itself": ({"$ref": "#"}, "without end"),
    "requires itself": (closed(a={"$ref": "#"}), "without end"),
    "requires itself by another": (
        {"$defs": {"a": closed(b={"$ref": "#/$defs/b"}), "b": closed(a={"$ref": "#/$defs/a"})}, "$ref": "#/$defs/a"},
        "without end",
    ),
    "every alternative requires it": ({"anyOf": [closed(a={"$ref": "#"}), {"$ref": "#"}]}, "without end"),
    "lists of itself": ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "without end"),
    "missing reference": ({"$ref": "#/$defs/none"}, "isn't there"),
    "remote reference": ({"$ref": "https://example.com/x"}, "can't be used"),
    "unknown type": ({"type": "strin"}, "type"),
    "unknown format": ({"type": "string", "format": "wat"}, "format"),
    "unsupported": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "not": ({"not": S}, "not"),
    "overlapping oneOf": ({"oneOf": [S, {"type": ["string", "null"]}]}, "anyOf"),
    "too many items": ({"type": "array", "minItems": 10**6}, "minItems"),
    "too long": ({"type": "string", "minLength": 10**9}, "minLength"),
    "not JSON": ("{", "not JSON"),
    "NaN": ('{"const": NaN}', "not JSON"),
    "a list": ("[1]", "JSON object"),
    "a set": ({"enum": {1}}, "JSON can't"),
    "infinity": ({"const": float("inf")}, "JSON can't"),
    "another class": (dict, "pydantic"),
    "many parts": ({"enum": list(range(50_000))}, "parts"),
    "large": ({"const": "x" * 300_000}, "bytes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_satisfies_or_nobody_can_read_is_refused(compiler, name):
    schema, why = REFUSED[name]
    with pytest.raises(ConstraintError, match=why):
        compiler.guide(json_schema(schema)).after()


def nested(kind: str, depth: int) -> str:
    return {"array": '{"items":', "allOf": '{"allOf":[', "object": '{"properties":{"a":'}[kind] * depth


@pytest.mark.parametrize("kind", ["array", "allOf", "object"])
def test_deep_schemas_are_refused(kind):
    close = {"array": "}", "allOf": "]}", "object": "}}"}[kind]
    for depth in (150, 20_000):
        with pytest.raises(ConstraintError, match=r"deep|bytes"):
            json_schema(nested(kind, depth) + "{}" + close * depth)


def test_large_schemas_are_bounded(compiler):
    """The worst of each kind that passes the first checks: compiled or refused within seconds, and then followed."""
    many = {f"p{i}": S for i in range(1000)}
    fan = {f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
    both = {
        f"d{i}": {"allOf": [{"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, closed([], **{f"x{i}": S})]}] * 2}
        for i in range(9)
    }
    for schema in (
        {"type": "object", "properties": many},
        closed(**many),
        {"enum": [f"v{i}" for i in range(7000)]},
        {"$defs": {**fan, "d30": S}, "$ref": "#/$defs/d0"},
        {"$defs": {**both, "d9": {"type": "object"}}, "$ref": "#/$defs/d0"},
        {"type": "array", "items": closed([], **dict(list(many.items())[:100])), "minItems": 2000},
    ):
        started = time.process_time()
        try:
            guide = compiler.guide(json_schema(schema))
            for _ in range(20):
                allowed = guide.after()
                if allowed.ended:
                    break
                guide.push(int(allowed.ids[-1] if allowed.ids[-1] < END else allowed.ids[0]))
        except ConstraintError:
            pass
        assert time.process_time() - started < 5


def test_a_constraint_is_a_value():
    constraint = json_schema(closed(a=I))
    assert isinstance(constraint, Constraint) and constraint.kind == "schema"
    with pytest.raises(AttributeError):
        constraint.text = ""  # type: ignore[misc]
