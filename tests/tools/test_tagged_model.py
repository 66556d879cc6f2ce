"""A model whose template teaches the tag format: told of tools, held to them, read back, in every mode."""

from __future__ import annotations

import jsonschema
import pytest

import trifolium
from tiny_engine import write_folder

TEMPLATE = """{%- if tools %}{{ '<|im_start|>system\\nTools:' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\nCall them as <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for key, value in call.function.arguments | items %}
{{- '<parameter=' + key + '>\\n' + (value if value is string else value | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}{{- '</function>\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
PLACE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "size"],
}
TOOLS = [{"type": "function", "function": {"name": "place", "parameters": PLACE}}]


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("tagged") / "tiny", chat_template=TEMPLATE, max_positions=3000).path
    return trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype="int8")


def test_calls_in_every_mode(lm):
    assert lm.tool_format.name == "tagged"
    turns = [
        lm.chat("Hello", tools=TOOLS, tool_choice="required", parallel_tool_calls=False, mode=mode, max_tokens=1000)
        for mode in ("ar", "verified", "diffusion")
    ]
    for turn in turns:
        [call] = turn.calls
        jsonschema.validate(call.values, PLACE)
        assert turn.finish_reason == "tool_calls" and turn.content == ""
        assert turn.result.text.startswith("<tool_call>\n<function=place>\n<parameter=name>\n")
    assert turns[0].result.token_ids == turns[1].result.token_ids


def test_what_was_called_stands_in_the_next_prompt_as_it_was_written(lm):
    turn = lm.chat("Hello", tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=1000)
    [call] = turn.calls
    history = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "tool_calls": [{"function": {"name": call.name, "arguments": call.arguments}}]},
        {"role": "tool", "content": "done"},
    ]
    prompt = lm.tokenizer.decode(lm.encode(history, tools=TOOLS))
    assert f"assistant\n{turn.result.text}<|im_end|>\n<|im_start|>user\ndone" in prompt
    assert prompt.startswith('<|im_start|>system\nTools:\n{"type": "function", "function": {"name": "place"')
