"""Both formats: what their grammars let through, and how calls are written and read back."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_engine import write_folder
from trifolium.checkpoint import open_checkpoint
from trifolium.constrain import Compiler, Constraint, json_schema, regex
from trifolium.errors import ConstraintError, ToolError
from trifolium.text import Tokenizer
from trifolium.tools import ToolCall, ToolFormat, ToolUse, constraint_of, format_of, read_tools
from trifolium.tools.hermes import Hermes
from trifolium.tools.tagged import Tagged

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "station": {"type": "string", "pattern": "^[A-Z]{2}/[0-9]+$"},
        "short": {"type": "string", "minLength": 2, "maxLength": 5},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "on": {"type": "string", "format": "date"},
        "place": {"$ref": "#/$defs/place"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}
TOOLS = read_tools(
    [
        {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}},
        {"type": "function", "name": "now"},
    ]
)
FORMATS: list[ToolFormat] = [Hermes(), Tagged()]
ARGUMENTS: dict[str, Any] = {
    "city": 'Paris, "France"\n</parameter> ☘',
    "days": 3,
    "unit": "celsius",
    "station": "AB/12",
    "short": "ab\nc",
    "tags": ["a", "{b}"],
    "on": "2024-02-03",
    "place": {"x": -1.5},
    "note": None,
}
each_format = pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return write_folder(tmp_path_factory.mktemp("tools") / "tiny", with_adapter=False).tokenizer()


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> Compiler:
    return Compiler(tokenizer, tokenizer.eos_ids, tokenizer.vocab_size)


def follow(compiler: Compiler, tokenizer: Tokenizer, constraint: Constraint, text: str) -> str:
    """How far the constraint goes along with a text: "" if not at all, "partly", or "whole" if it may end there."""
    guide = compiler.guide(constraint)
    for token in tokenizer.encode(text, special=False):
        if token not in guide.after():
            return ""
        guide.push(token)
    allowed = guide.after()
    return "whole" if allowed.ended or any(end in allowed for end in tokenizer.eos_ids) else "partly"


@each_format
def test_what_is_written_can_be_read_and_is_allowed(format, compiler, tokenizer):
    written = format.write("get_weather", ARGUMENTS)
    call = format.read(written.removeprefix("<tool_call>").removesuffix("</tool_call>"), TOOLS)
    assert call == ToolCall("get_weather", call.arguments) and call.values == ARGUMENTS
    auto = constraint_of(format, ToolUse(TOOLS))
    assert follow(compiler, tokenizer, auto, written) == "whole"
    assert follow(compiler, tokenizer, auto, f"Let me see.\n{written}\n{format.write('now', {})}\nDone.") == "whole"


@each_format
@pytest.mark.parametrize(
    ("use", "texts"),
    [
        (ToolUse(TOOLS), {"words": "whole", "": "partly", " \n": "partly", "one": "whole", "two": "whole"}),
        (ToolUse(TOOLS, "required"), {"words": "", "one": "whole", "two": "whole", "words one": ""}),
        (ToolUse(TOOLS, "none"), {"words": "whole", "one": "", "words one": "", "": "partly"}),
        (ToolUse(TOOLS, parallel=False), {"one": "whole", "two": "", "words one": "whole"}),
        (ToolUse(TOOLS, "required", "now", parallel=False), {"one": "", "now": "whole", "words": "", "now now": ""}),
    ],
    ids=["auto", "required", "none", "single", "named"],
)
def test_choices(format, use, texts, compiler, tokenizer):
    one, now = format.write("get_weather", {"city": "Paris"}), format.write("now", {})
    spelled = {"words": "Hello.", "one": one, "now": now, "two": f"{one}\n{now}", "now now": f"{now}\n{now}"}
    spelled |= {"words one": f"Well, {one}", "": "", " \n": " \n"}
    constraint = constraint_of(format, use)
    assert {name: follow(compiler, tokenizer, constraint, spelled[name]) for name in texts} == texts


@each_format
@pytest.mark.parametrize(
    "arguments",
    [
        {"days": 1},
        {"city": "x", "days": 15},
        {"city": "x", "unit": "kelvin"},
        {"city": "x", "station": "abc"},
        {"city": "x", "short": "abcdef"},
        {"city": "x", "tags": ["a"] * 4},
        {"city": "x", "on": "yesterday"},
        {"city": "x", "place": {}},
        {"city": "x", "more": 1},
        {"city": "x", "days": "x"},
    ],
)
def test_calls_that_are_not_valid_are_not_allowed(format, arguments, compiler, tokenizer):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(WEATHER, format_checker=jsonschema.FormatChecker()).validate(arguments)
    text = format.write("get_weather", arguments)
    assert follow(compiler, tokenizer, constraint_of(format, ToolUse(TOOLS)), text) == ""


@each_format
def test_unknown_tools_and_half_calls_are_not_allowed(format, compiler, tokenizer):
    auto = constraint_of(format, ToolUse(TOOLS))
    assert follow(compiler, tokenizer, auto, format.write("rm", {})) == ""
    whole = format.write("get_weather", {"city": "x"})
    for end in range(len("<tool_call>"), len(whole)):
        assert follow(compiler, tokenizer, auto, whole[:end]) == "partly", whole[:end]


@each_format
def test_random_walks_through_the_grammar_are_valid_calls(format, compiler, tokenizer):
    """A model that knows nothing: whatever it picks of what is allowed, what comes out is a valid call."""
    validators = {tool.name: jsonschema.Draft202012Validator(dict(tool.parameters)) for tool in TOOLS}
    chance = random.Random(3)
    for _ in range(12):
        guide = compiler.guide(constraint_of(format, ToolUse(TOOLS, "required", parallel=False)))
        tokens: list[int] = []
        while not (allowed := guide.after()).ended and len(tokens) < 3000:
            # Often what closes strings, lists and texts, or the walk would take for ever.
            ends = [tokenizer.encode(end, special=False) for end in ('"', "]", "}", "\n</parameter>\n")]
            closing = [end for end in ends if end[0] in allowed]
            one = [int(chance.choice(allowed.ids))]
            for pick in chance.choice(closing) if closing and chance.random() < 0.3 else one:
                if pick in guide.after():
                    guide.push(pick)
                    tokens.append(pick)
        text = tokenizer.decode(tokens)
        assert guide.ended, text
        call = format.read(text.removeprefix("<tool_call>").removesuffix("</tool_call>"), TOOLS)
        validators[call.name].validate(call.values)


def test_the_template_says_the_format():
    assert format_of(None).name == "hermes" == format_of("{{ '<tool_call>' }}").name
    assert format_of("{{ '<tool_call>\n<function=' }}").name == "tagged"


def test_a_schema_for_the_words(compiler, tokenizer):
    both = constraint_of(Hermes(), ToolUse(TOOLS), content=json_schema({"type": "integer"}))
    call = Hermes().write("now", {})
    found = {text: follow(compiler, tokenizer, both, text) for text in ("12", "words", call, f"12{call}")}
    assert found == {"12": "whole", "words": "", call: "whole", f"12{call}": ""}
    with pytest.raises(ToolError, match="JSON Schema"):
        constraint_of(Hermes(), ToolUse(TOOLS), content=regex("a+"))


def test_thoughts_may_come_before_a_call_that_is_required(compiler, tokenizer):
    constraint = constraint_of(Hermes(), ToolUse(TOOLS, "required"), thinking=True)
    call = Hermes().write("now", {})
    assert follow(compiler, tokenizer, constraint, f"Hm.\n</think>\n\n{call}") == "whole"
    assert follow(compiler, tokenizer, constraint, f"Hm.\n{call}") == "whole"
    assert follow(compiler, tokenizer, constraint, "Hm.\n</think>\n\nNo.") == "partly"


@pytest.mark.parametrize(
    "body",
    ["", "{}", "[]", "{", '{"name": "now"}', '{"name": "rm", "arguments": {}}', '{"name": "now", "arguments": []}',
     '{"name": "now", "arguments": {}, "more": 1}', "<function=rm>\n</function>", "<function=now>",
     "<function=get_weather>\n<parameter=city>\nx\n</parameter>\n<parameter=city>\ny\n</parameter>\n</function>",
     "<function=get_weather>\nParis</function>"],
)  # fmt: skip
@each_format
def test_what_is_no_call_is_refused(format, body):
    with pytest.raises(ToolError):
        format.read(f"\n{body}\n", TOOLS)


def test_arguments_stay_as_they_were_written():
    written = '{"city": "\\u0041",  "days": 1.50e2}'
    assert Hermes().read(f'\n{{"name": "get_weather", "arguments": {written}}}\n', TOOLS).arguments == written
    twice = '{"city": "a", "city": "b"}'
    assert Hermes().read(f'{{"name": "get_weather", "arguments": {twice}}}', TOOLS).arguments == '{"city": "b"}'
    swapped = '{"arguments": {"a": 1}, "name": "get_weather"}'
    assert json.loads(Hermes().read(swapped, TOOLS).arguments) == {"a": 1}


@given(st.dictionaries(st.sampled_from(sorted(WEATHER["properties"])), st.text(max_size=20)))  # type: ignore[arg-type]
@settings(max_examples=100, deadline=None)
def test_any_text_survives_hermes(arguments):
    written = Hermes().write("get_weather", arguments)
    body = written.removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert Hermes().read(body, TOOLS).values == arguments


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "object", "properties": {}, "anyOf": [{"required": ["a"]}]}, "anyOf"),
        ({"type": "object", "properties": {"a": {"type": "string", "format": "hostname"}}}, "format"),
        ({"type": "object", "properties": {"a>": {"type": "string"}}}, "no tag"),
        ({"type": "object", "required": ["a"]}, "none of its properties"),
    ],
)
def test_what_tags_cannot_follow_is_said(parameters, message):
    with pytest.raises(ToolError, match=message):
        constraint_of(Tagged(), ToolUse(read_tools([{"type": "function", "name": "f", "parameters": parameters}])))


def test_what_no_grammar_can_follow_is_said(compiler):
    tools = read_tools([{"type": "function", "name": "f", "parameters": {"type": "object", "not": {}}}])
    with pytest.raises(ConstraintError):
        compiler.guide(constraint_of(Hermes(), ToolUse(tools)))


@pytest.mark.real
def test_formats_with_real_tokens(default_gguf):
    checkpoint = open_checkpoint(default_gguf)
    tokenizer = checkpoint.tokenizer()
    compiler = Compiler(tokenizer, tokenizer.eos_ids, checkpoint.config.vocab_size)
    for format in FORMATS:
        text = f"So:\n{format.write('get_weather', ARGUMENTS)}\n{format.write('now', {})}"
        assert follow(compiler, tokenizer, constraint_of(format, ToolUse(TOOLS)), text) == "whole"
