"""Turns read piece by piece, and conversations laid out for templates that know tools and those that don't."""

from __future__ import annotations

import random

import pytest

import trifolium
from tiny_engine import write_folder
from trifolium.errors import ToolError
from trifolium.text import ChatTemplate, ReasoningSplitter
from trifolium.tools import Said, Tool, ToolCall, ToolUse, TurnReader, lay_out, read_tools, read_use
from trifolium.tools.hermes import Hermes
from trifolium.tools.tagged import Tagged

TOOLS = (Tool("add", "Add", {"type": "object", "properties": {"a": {"type": "integer"}}}), Tool("now"))
ADD = Hermes().write("add", {"a": 1})
NOW = Hermes().write("now", {})


def read(text: str, *, thinking: bool = False, pieces: int | None = None, seed: int = 0) -> list[Said | ToolCall]:
    """A turn's parts, neighbours of one kind joined."""
    reader = TurnReader(ReasoningSplitter(thinking, knows=thinking), Hermes(), TOOLS)
    cuts = sorted(random.Random(seed).sample(range(len(text) + 1), min(pieces or 0, len(text))))
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        parts += list(reader.push(text[start:stop]))
    joined: list[Said | ToolCall] = []
    for part in (*parts, *reader.finish()):
        if isinstance(part, Said) and joined and isinstance(last := joined[-1], Said) and last.kind == part.kind:
            joined[-1] = Said(part.kind, last.text + part.text)
        else:
            joined.append(part)
    return joined


add, now = ToolCall("add", '{"a": 1}'), ToolCall("now", "{}")


def content(text: str) -> Said:
    return Said("content", text)


CASES = {
    "Hello.\n": [content("Hello.\n")],
    ADD: [add],
    f"Well.\n\n{ADD}\n{NOW}\n\nDone.": [content("Well."), add, now, content("Done.")],
    f"{ADD}   \n {NOW}  ": [add, now],
    "a <tool_cal": [content("a <tool_cal")],
    "a < b <tool_ call>": [content("a < b <tool_ call>")],
    f"x{ADD[:-3]}": [content("x")],
    f"x\n<tool_call>\n{{}}\n</tool_call>{NOW}": [content("x"), now],
}


@pytest.mark.parametrize("text", CASES)
def test_parts_of_a_turn_however_it_arrives(text):
    assert read(text) == CASES[text]
    for seed in range(40):
        assert read(text, pieces=1 + seed % 7, seed=seed) == CASES[text]


def test_a_call_ends_thoughts():
    assert read(f"Hm.\n{ADD}\nSo.", thinking=True) == [Said("reasoning", "Hm."), add, content("So.")]
    assert read(f"Hm.\n</think>\n\nAh.\n{ADD}", thinking=True) == [Said("reasoning", "Hm."), content("Ah."), add]


def test_without_tools_nothing_is_a_call():
    reader = TurnReader(ReasoningSplitter(knows=False), None)
    assert reader.read(f"x {ADD}") == ("", f"x {ADD}", ())


CALLS = [
    {"id": "a", "function": {"name": "add", "arguments": '{"a": 1}'}},
    {"id": "b", "function": {"name": "now", "arguments": ""}},
]
CONVERSATION = [
    {"role": "user", "content": "1?"},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "a", "content": "2"},
    {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "noon"}]},
    {"role": "assistant", "content": "Two, at noon."},
]  # fmt: skip


def test_templates_without_tools_get_text():
    told = lay_out(None, Hermes(), CONVERSATION, TOOLS)
    assert [message["role"] for message in told] == ["system", "user", "assistant", "user", "assistant"]
    assert '<tools>\n{"name": "add", "description": "Add", "parameters": {' in told[0]["content"]
    assert told[2] == {"role": "assistant", "content": f"{ADD}\n{NOW}"}
    results = "<tool_response>\n2\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
    assert told[3] == {"role": "user", "content": results}
    assert ChatTemplate(None).render(told).count("<|im_start|>") == 6
    with_system = lay_out(None, Tagged(), [{"role": "system", "content": "Be brief."}, *CONVERSATION], TOOLS)
    assert with_system[0]["content"].startswith("Be brief.\n\n# Tools") and len(with_system) == 5
    assert "<parameter=a>\n1\n</parameter>" in with_system[2]["content"]


def test_templates_with_tools_of_another_format_get_text_only(tmp_path):
    """Or the prompt would tell of the tools twice, and teach two ways to call them."""
    source = "{% if tools %}TOOLS {{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    folder = write_folder(tmp_path / "tiny", with_adapter=False, chat_template=source).path
    lm = trifolium.load(folder, adapter=None, dtype="float32")
    text = lm.tokenizer.decode(lm.encode([{"role": "user", "content": "Hi"}], tools=TOOLS))
    assert text.startswith("[# Tools\n") and text.endswith("][Hi]") and "TOOLS" not in text


def test_templates_with_tools_get_arguments_as_objects():
    source = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}{% endfor %};{% endfor %}{{ tools | length }}"  # noqa: E501
    told = lay_out(source, Hermes(), CONVERSATION, TOOLS)
    text = ChatTemplate(source).render(told, tools=[tool.as_openai() for tool in TOOLS])
    assert text == "user:1?;assistant:<tool_call>adda=1<tool_call>now;tool:2;tool:noon;assistant:Two, at noon.;2"


@pytest.mark.parametrize(
    ("calls", "place"),
    [
        ([{"function": {"name": "add", "arguments": "{"}}], (0, "tool_calls", 0, "function", "arguments")),
        ([{"function": {"name": "add", "arguments": "[]"}}], (0, "tool_calls", 0, "function", "arguments")),
        ([{"function": {"arguments": "{}"}}], (0, "tool_calls", 0)),
        (["add"], (0, "tool_calls", 0)),
    ],
)
def test_broken_calls_in_a_conversation(calls, place):
    with pytest.raises(ToolError) as refused:
        lay_out(None, Hermes(), [{"role": "assistant", "tool_calls": calls}], TOOLS)
    assert refused.value.where == place


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([{"type": "web_search"}], None, "web_search"),
        (["add"], None, "str"),
        ([{"type": "function", "function": {"name": "a b"}}], None, "name"),
        ([{"type": "function", "function": {"name": "x" * 129}}], None, "128"),
        ([{"type": "function", "name": "a"}] * 2, None, "two tools"),
        ([{"type": "function", "name": f"t{i}"} for i in range(129)], None, "128"),
        ([{"type": "function", "name": "a", "parameters": {"type": "array"}}], None, "object"),
        ([{"type": "function", "name": "a", "parameters": 5}], None, "no JSON Schema"),
        ([{"type": "function", "name": "a", "description": 5}], None, "description"),
        ([{"type": "function", "name": "a"}], "any", "tool_choice"),
        ([{"type": "function", "name": "a"}], {"type": "function", "function": {"name": "b"}}, "among"),
        ([{"type": "function", "name": "a"}], {"type": "allowed_tools", "tools": [{"name": "a"}]}, "allowed"),
        ([], "required", "no tools"),
    ],
)  # fmt: skip
def test_broken_tools_are_refused(tools, choice, message):
    with pytest.raises(ToolError, match=message):
        read_use(tools, choice)


def test_choices_in_all_shapes():
    tools = [{"type": "function", "name": "a"}, {"type": "function", "function": {"name": "b"}}]
    both = read_tools(tools)
    assert read_use([]) is None and read_use([], "auto") is None
    assert read_use(tools) == ToolUse(both) and read_use(tools, "none", False) == ToolUse(both, "none", None, False)
    for named in ({"type": "function", "name": "b"}, {"type": "function", "function": {"name": "b"}}):
        use = read_use(tools, named)
        assert use is not None and use.callable == both[1:] and use.required and not use.parallel
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "a"}]}
    assert read_use(tools, allowed) == ToolUse(both[:1], "required")
    assert read_use(tools, {"type": "allowed_tools", "allowed_tools": allowed}) == ToolUse(both[:1], "required")
