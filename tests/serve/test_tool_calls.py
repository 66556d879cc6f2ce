"""Tool calls through the official clients: forced, in streams, in histories, and refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import jsonschema
import openai
import pytest

from running_server import RunningServer
from trifolium import LM

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
ASK = "Ask for the weather"
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "description": ASK, "parameters": CITY}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
FLAT: list[Any] = [{"type": "function", **tool["function"]} for tool in TOOLS]
THEIRS: list[Any] = [
    {"name": "get_weather", "description": ASK, "input_schema": CITY},
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]
HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]
MODES = ("ar", "verified", "diffusion")
ONE = {"type": "function", "function": {"name": "get_weather"}}


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def theirs(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def check(name: str, arguments: Any) -> None:
    assert name in ("get_weather", "now")
    jsonschema.validate(arguments, CITY if name == "get_weather" else {"type": "object", "maxProperties": 0})


# Chat


@pytest.mark.parametrize("mode", MODES)
def test_a_named_tool_is_called(client: openai.OpenAI, lm: LM, mode: str) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "tool_choice": ONE}
    answer = client.chat.completions.create(**options, temperature=0, extra_body={"trifolium": {"mode": mode}})
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    [call] = choice.message.tool_calls or []
    assert call.type == "function" and call.id.startswith("call_") and call.function.name == "get_weather"
    check(call.function.name, json.loads(call.function.arguments))
    if mode != "diffusion":
        [expected] = lm.chat(HELLO, tools=TOOLS, tool_choice=ONE, max_tokens=8000).calls
        assert call.function.arguments == expected.arguments


def test_streams_tell_what_whole_answers_tell(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "tool_choice": "required"}
    options |= {"temperature": 1, "max_tokens": 3000, "n": 2}
    for seed in range(4):
        whole = client.chat.completions.create(**options, seed=seed)
        told: list[list[dict[str, str]]] = [[], []]
        reasons: dict[int, str] = {}
        for chunk in client.chat.completions.create(**options, seed=seed, stream=True):
            for choice in chunk.choices:
                reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
                for delta in choice.delta.tool_calls or []:
                    assert delta.function is not None
                    calls = told[choice.index]
                    if delta.index == len(calls):
                        assert delta.id and delta.type == "function" and delta.function.name
                        calls.append({"id": delta.id, "name": delta.function.name, "arguments": ""})
                    else:
                        assert delta.index == len(calls) - 1 and not delta.id and not delta.function.name
                    calls[-1]["arguments"] += delta.function.arguments or ""
        ids = [call["id"] for calls in told for call in calls]
        assert len(set(ids)) == len(ids) > 0
        for choice in whole.choices:
            made = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
            assert made == [(call["name"], call["arguments"]) for call in told[choice.index]]
            assert reasons[choice.index] == choice.finish_reason
            for name, arguments in made:
                check(name, json.loads(arguments))


def test_auto_lets_a_model_talk_and_none_makes_it(client: openai.OpenAI, lm: LM) -> None:
    for choice in ("auto", "none"):
        answer = client.chat.completions.create(
            model="tiny", messages=HELLO, tools=TOOLS, tool_choice=choice, temperature=0, max_tokens=12
        )  # type: ignore[call-overload]
        said = lm.chat(HELLO, tools=TOOLS, tool_choice=choice, max_tokens=12)
        assert answer.choices[0].message.content == said.content != ""
        assert answer.choices[0].message.tool_calls is None and not said.calls
        assert answer.usage.prompt_tokens == said.result.prompt_tokens > 200


def test_half_a_call_never_leaves(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "tool_choice": ONE, "max_tokens": 40}
    [choice] = client.chat.completions.create(**options).choices
    assert choice.finish_reason == "length" and not choice.message.tool_calls and not choice.message.content
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert not any(c.delta.tool_calls or c.delta.content for chunk in chunks for c in chunk.choices)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_a_conversation_with_calls_and_results(client: openai.OpenAI, lm: LM) -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Rome", "days": 2}'}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "sunny"}]},
        {"role": "user", "content": "And now?"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS, temperature=0, max_tokens=9)  # type: ignore[arg-type]
    expected = lm.chat(
        [{**m, "content": "sunny"} if m["role"] == "tool" else m for m in messages], tools=TOOLS, max_tokens=9
    )
    assert answer.choices[0].message.content == expected.content
    assert answer.usage is not None and answer.usage.prompt_tokens == expected.result.prompt_tokens
    prompt = lm.tokenizer.decode(lm.encode(messages[:2]))  # also without tools
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>' in prompt


def test_a_schema_for_the_answer_beside_tools(client: openai.OpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer", "maximum": 99}}}
    options: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "response_format": schema}
    said = client.chat.completions.create(**options, tool_choice="none").choices[0].message
    assert isinstance(json.loads(said.content or ""), int)
    called = client.chat.completions.create(**options, tool_choice=ONE).choices[0].message
    assert called.content is None and called.tool_calls


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": TOOLS + TOOLS}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]},
         "tools.0.function.parameters.type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "guided_regex": "a+"}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"not": {}}}}]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
         "messages.0.tool_calls.0.function.arguments"),
        ({"messages": [{"role": "function", "name": "a", "content": "x"}]}, "messages.0"),
    ],
)  # fmt: skip
def test_broken_tools_are_refused_by_place(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 5, **fields})
    assert answer.status_code == 400, answer.text
    told = answer.json()["error"]["param"]
    assert told == param or told.startswith(f"{param}."), told


def test_tools_that_fit_into_no_context_are_refused_at_once(http: httpx.Client) -> None:
    properties = {f"p{i}": {"type": "string", "description": "x" * 2000} for i in range(3000)}
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": properties}}}
    ]
    started = time.perf_counter()
    answer = http.post("/v1/chat/completions", json={"messages": HELLO, "tools": tools, "max_tokens": 5})
    assert answer.status_code == 400 and time.perf_counter() - started < 5, answer.text[:300]


# Responses


def test_responses_call_functions(client: openai.OpenAI, lm: LM) -> None:
    options: dict[str, Any] = {"model": "tiny", "input": "Hello there", "tools": FLAT, "temperature": 0}
    choice = {"type": "function", "name": "get_weather"}
    answer = client.responses.create(**options, tool_choice=choice)
    [item] = answer.output
    assert item.type == "function_call" and answer.status == "completed" and answer.tool_choice
    [expected] = lm.chat("Hello there", tools=TOOLS, tool_choice=choice, max_tokens=8000).calls
    assert (item.name, item.arguments) == (expected.name, expected.arguments)
    assert item.call_id.startswith("call_") and item.status == "completed"

    with client.responses.stream(**options, tool_choice=choice) as stream:
        kinds, deltas = [], ""
        for event in stream:
            kinds.append(event.type)
            deltas += event.delta if event.type == "response.function_call_arguments.delta" else ""
        final = stream.get_final_response()
    assert deltas == expected.arguments == final.output[0].arguments  # type: ignore[union-attr]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 1
    assert kinds.index("response.output_item.added") < kinds.index("response.function_call_arguments.delta")
    assert kinds.count("response.function_call_arguments.done") == 1 and kinds[-1] == "response.completed"

    result = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
    after = client.responses.create(**options, previous_response_id=answer.id)  # no result: the model sees its call
    went_on = client.responses.create(
        **{**options, "input": [result]}, previous_response_id=answer.id, max_output_tokens=9
    )
    spelled = client.responses.create(
        **{**options, "input": [{"role": "user", "content": "Hello there"}, item.to_dict(), result]},
        max_output_tokens=9,
    )
    assert went_on.output_text == spelled.output_text != ""
    assert went_on.usage is not None and spelled.usage is not None and after.output
    assert went_on.usage.input_tokens == spelled.usage.input_tokens


def test_response_items_of_calls_are_listed(client: openai.OpenAI) -> None:
    items: Any = [
        {"role": "user", "content": "Hello"},
        {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "noon"}]},
    ]
    made = client.responses.create(model="tiny", input=items, tools=FLAT, max_output_tokens=4, tool_choice="none")
    listed = client.responses.input_items.list(made.id, order="asc").data
    assert [item.type for item in listed] == ["message", "function_call", "function_call_output"]
    assert [str(item.id).split("_")[0] for item in listed] == ["msg", "fc", "fco"]


# Messages


@pytest.mark.parametrize("streamed", [False, True])
def test_messages_use_tools(theirs: anthropic.Anthropic, lm: LM, streamed: bool) -> None:
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 3000, "messages": HELLO, "tools": THEIRS}
    options |= {"extra_body": {"temperature": 0}, "tool_choice": {"type": "tool", "name": "get_weather"}}
    if streamed:
        with theirs.messages.stream(**options) as stream:
            answer = stream.get_final_message()
    else:
        answer = theirs.messages.create(**options)
    [block] = answer.content
    assert answer.stop_reason == "tool_use" and block.type == "tool_use" and block.id.startswith("toolu_")
    [expected] = lm.chat(HELLO, tools=TOOLS, tool_choice=ONE, max_tokens=3000).calls
    assert (block.name, block.input) == (expected.name, expected.values)


def test_message_blocks_tell_calls_and_results(theirs: anthropic.Anthropic, lm: LM) -> None:
    messages: Any = [
        *HELLO,
        {"role": "assistant", "content": [
            {"type": "text", "text": "Let me look."},
            {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Rome", "days": 2}},
            {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
            {"type": "tool_result", "tool_use_id": "t2", "content": "no clock", "is_error": True},
            {"type": "text", "text": "And?"},
        ]},
    ]  # fmt: skip
    calls = [
        {"function": {"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}},
        {"function": {"name": "now"}},
    ]
    same = [
        *HELLO,
        {"role": "assistant", "content": "Let me look.", "tool_calls": calls},
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "Error: no clock"},
        {"role": "user", "content": "And?"},
    ]
    expected = lm.chat(same, tools=TOOLS, max_tokens=9)
    answer = theirs.messages.create(
        model="tiny", max_tokens=9, messages=messages, tools=THEIRS, extra_body={"temperature": 0}
    )
    assert answer.content[0].text == expected.content  # type: ignore[union-attr]
    counted = theirs.messages.count_tokens(model="tiny", messages=messages, tools=THEIRS)
    assert counted.input_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
    required = theirs.messages.create(
        model="tiny", max_tokens=3000, messages=messages, tools=THEIRS,
        tool_choice={"type": "any", "disable_parallel_tool_use": True}, extra_body={"temperature": 0},
    )  # fmt: skip
    assert [block.type for block in required.content] == ["tool_use"]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": THEIRS, "tool_choice": {"type": "tool", "name": "rm"}},
        {"tools": THEIRS, "tool_choice": {"type": "sometimes"}},
        {"tools": [{"name": "", "input_schema": {}}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "now", "input": {}}]}]},
        {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "now"}]}]},
    ],
)
def test_broken_messages_are_refused(http: httpx.Client, fields: dict[str, Any]) -> None:
    answer = http.post("/v1/messages", json={"messages": HELLO, "max_tokens": 5, **fields})
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error", answer.text


# Any model


def test_turns_of_a_model_that_knows_nothing(lm: LM) -> None:
    """Sampled from random weights: no turn is empty, no call is broken. `bench/tool_calls.py` asks more."""
    prompt = lm.encode(HELLO, tools=TOOLS)
    handles = []
    for seed in range(240):
        choice = ("auto", "required", "none", ONE)[seed % 4]
        request, use = lm.request(
            prompt, tools=TOOLS, tool_choice=choice, temperature=1.0, seed=seed, max_tokens=150, mode="ar"
        )
        handles.append((lm.engine.add(request), use, choice))
    while not all(handle.done for handle, _, _ in handles):
        lm.engine.step()
    calls = whole = 0
    for handle, use, choice in handles:
        turn = lm.reader(prompt, use).turn(handle.result)
        for call in turn.calls:
            check(call.name, call.values)
        calls += len(turn.calls)
        whole += turn.finish_reason in ("stop", "tool_calls")
        if turn.finish_reason in ("stop", "tool_calls"):
            assert turn.content.strip() or turn.calls
            assert choice in ("auto", "none") or turn.calls
        if choice in ("auto", "none"):
            assert turn.content.strip()
    assert calls > 30 and whole > 30, (calls, whole)
