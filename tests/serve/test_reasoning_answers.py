"""Reasoning apart from content, in every API: a random model that a pattern makes think aloud."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from running_server import RunningServer, events_of, running
from tiny_engine import write_folder

TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}"""
ASK = {"messages": [{"role": "user", "content": "Well?"}], "max_tokens": 60, "temperature": 0}
THOUGHT = "<think>\nhm, [ab]{12}\n</think>\n\nYes: [cd]{9}"


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running(write_folder(tmp_path_factory.mktemp("thinking") / "tiny", chat_template=TEMPLATE).path) as server:
        yield server


def test_chat_tells_thoughts_apart(thinking):
    body = {**ASK, "guided_regex": THOUGHT}
    message = httpx.post(f"{thinking.url}/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["reasoning_content"].startswith("hm, ") and len(message["reasoning_content"]) == 16
    assert message["content"].startswith("Yes: ") and len(message["content"]) == 14
    said = {"reasoning_content": "", "content": ""}
    with httpx.stream("POST", f"{thinking.url}/v1/chat/completions", json={**body, "stream": True}) as stream:
        for chunk in events_of(stream.iter_lines()):
            for key in said:
                said[key] += chunk["choices"][0]["delta"].get(key, "")
    assert said == {key: message[key] for key in said}


def test_prompts_that_open_a_thought_begin_inside_it(thinking):
    body = {**ASK, "max_tokens": 12, "chat_template_kwargs": {"enable_thinking": True}}
    message = httpx.post(f"{thinking.url}/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["content"] == "" and message["reasoning_content"]
    plain = httpx.post(f"{thinking.url}/v1/chat/completions", json={**ASK, "max_tokens": 12}).json()
    assert plain["choices"][0]["message"]["reasoning_content"] == ""
    effort = {**ASK, "max_tokens": 12, "reasoning_effort": "high"}
    message = httpx.post(f"{thinking.url}/v1/chat/completions", json=effort).json()["choices"][0]["message"]
    assert message["reasoning_content"]


def test_a_constraint_cannot_begin_inside_a_thought(thinking):
    body = {**ASK, "guided_regex": "a", "chat_template_kwargs": {"enable_thinking": True}}
    answer = httpx.post(f"{thinking.url}/v1/chat/completions", json=body)
    assert answer.status_code == 400 and "thoughts" in answer.json()["error"]["message"]
    for effort in ({}, {"reasoning_effort": "high"}):  # an answer's form goes before its thoughts
        body = {**ASK, "guided_regex": "a", **effort}
        answer = httpx.post(f"{thinking.url}/v1/chat/completions", json=body)
        assert answer.json()["choices"][0]["message"]["content"] == "a"


def test_messages_have_thinking_blocks(thinking):
    body = {**ASK, "max_tokens": 12, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    content = httpx.post(f"{thinking.url}/v1/messages", json=body).json()["content"]
    assert [block["type"] for block in content] == ["thinking"] and content[0]["thinking"]
    disabled = {**body, "thinking": {"type": "disabled"}}
    assert httpx.post(f"{thinking.url}/v1/messages", json=disabled).json()["content"][0]["type"] == "text"


def test_responses_have_reasoning_items(thinking):
    body = {"input": "Well?", "max_output_tokens": 12, "temperature": 0, "reasoning": {"effort": "high"}}
    made = httpx.post(f"{thinking.url}/v1/responses", json=body).json()
    assert [item["type"] for item in made["output"]] == ["reasoning", "message"]
    assert made["output"][0]["content"][0]["text"] and made["output"][1]["content"][0]["text"] == ""
    assert 0 < made["usage"]["output_tokens_details"]["reasoning_tokens"] <= made["usage"]["output_tokens"] == 12
    with httpx.stream("POST", f"{thinking.url}/v1/responses", json={**body, "stream": True}) as stream:
        events = [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: ")]
    told = "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta")
    assert told == made["output"][0]["content"][0]["text"]
