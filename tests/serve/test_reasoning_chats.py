"""Chats with a model whose template knows reasoning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import trifolium
from running_server import RunningServer, events_of, running
from tiny_engine import write_folder

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is not defined or enable_thinking %}{{ '<think>\\n' }}"
    "{% else %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 16}


@pytest.fixture(scope="module")
def thinker(tmp_path_factory) -> Iterator[tuple[RunningServer, trifolium.LM]]:
    folder = write_folder(tmp_path_factory.mktemp("thinker") / "tiny", chat_template=TEMPLATE).path
    lm = trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype="int8")
    with running(folder) as server:
        yield server, lm


def ask(server: RunningServer, **more: Any) -> tuple[str, str, dict[str, Any]]:
    """(reasoning, content, usage), which a stream has to tell alike."""
    body = {**CHAT, **more}
    whole = server.client.post("/v1/chat/completions", json=body).json()
    message = whole["choices"][0]["message"]
    streamed = {"reasoning_content": "", "content": ""}
    usage = {}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    with server.client.stream("POST", "/v1/chat/completions", json=body) as response:
        for event in events_of(response.iter_lines()):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                for name in streamed:
                    streamed[name] += choice["delta"].get(name, "")
    assert streamed == {name: message[name] for name in streamed}
    assert usage["completion_tokens_details"] == whole["usage"]["completion_tokens_details"]
    return message["reasoning_content"], message["content"], whole["usage"]


def test_what_a_model_thinks_is_told_apart(thinker):
    server, lm = thinker
    alone = lm.generate("Hello", max_tokens=16)
    assert lm.is_thinking(lm.encode("Hello"))
    reasoning, content, usage = ask(server)
    assert (reasoning, content) == (alone.text.strip("\n"), "")
    assert usage["completion_tokens_details"]["reasoning_tokens"] >= len(reasoning)


@pytest.mark.parametrize(
    "off",
    [{"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}],
    ids=["kwargs", "effort"],
)
def test_thinking_can_be_turned_off(thinker, off):
    server, lm = thinker
    prompt = lm.encode([{"role": "user", "content": "Hello"}], template={"enable_thinking": False})
    reasoning, content, usage = ask(server, **off)
    assert (reasoning, content) == ("", lm.generate(prompt, max_tokens=16).text)
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 0
    assert ask(server, reasoning_effort="high")[0]
