"""The official anthropic client against the running server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import anthropic
import httpx
import pytest

from running_server import running
from trifolium.serve.anthropic import Blocks
from trifolium.tools import Said

GREEDY = {"temperature": 0}  # the API has it, the client no longer names it
HELLO = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
def client(server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        yield client


def test_messages_equal_the_model(client, lm):
    expected = lm.generate(HELLO, system="Be brief", max_tokens=20)
    answer = client.messages.create(model="tiny", max_tokens=20, system="Be brief", messages=HELLO, extra_body=GREEDY)
    assert answer.content[0].text == expected.text and answer.role == "assistant" and answer.type == "message"
    assert answer.stop_reason == {"stop": "end_turn", "length": "max_tokens"}[expected.finish_reason]
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == expected.prompt_tokens
    assert usage.output_tokens == expected.tokens
    assert answer.model == "tiny" and answer.id.startswith("msg_") and answer._request_id.startswith("req_")


def test_blocks_are_read_like_strings(client, lm):
    parts = [
        {"type": "text", "text": "Hello "},
        {"type": "text", "text": "there", "cache_control": {"type": "ephemeral"}},
    ]
    thoughts = [{"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "Hi"}]
    answer = client.messages.create(
        model="tiny",
        max_tokens=9,
        system=[{"type": "text", "text": "Be brief"}],
        messages=[
            {"role": "user", "content": parts},
            {"role": "assistant", "content": thoughts},
            {"role": "user", "content": "Again"},
        ],
        extra_body=GREEDY,
        metadata={"user_id": "someone"},
    )
    messages = [*HELLO, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Again"}]
    assert answer.content[0].text == lm.generate(messages, system="Be brief", max_tokens=9).text


def test_streams_gather_into_the_same_message(client, lm):
    expected = lm.generate(HELLO, max_tokens=24)
    with client.messages.stream(model="tiny", max_tokens=24, messages=HELLO, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == expected.text
    assert final.usage.output_tokens == expected.tokens
    kinds = [event.type for event in client.messages.create(
        model="tiny", max_tokens=24, messages=HELLO, stream=True, extra_body=GREEDY
    )]  # fmt: skip
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1
    assert kinds.index("content_block_start") < kinds.index("content_block_delta")


def test_async_client_with_many_at_once(server, lm):
    prompts = [f"Question {i}" for i in range(8)]
    expected = [lm.generate(prompt, max_tokens=12).text for prompt in prompts]

    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as client:

            async def one(prompt: str) -> str:
                messages = [{"role": "user", "content": prompt}]
                async with client.messages.stream(
                    model="default", max_tokens=12, messages=messages, extra_body=GREEDY
                ) as stream:
                    return "".join([text async for text in stream.text_stream])

            return await asyncio.gather(*map(one, prompts))

    assert asyncio.run(ask()) == expected


def test_a_final_assistant_message_is_the_answers_beginning(client, lm):
    messages = [*HELLO, {"role": "assistant", "content": "Well <|im_end|>"}]
    answer = client.messages.create(model="tiny", max_tokens=8, messages=messages, extra_body=GREEDY)
    prompt = lm.encode(HELLO) + lm.tokenizer.encode("Well <|im_end|>", special=False)
    assert answer.content[0].text == lm.generate(prompt, max_tokens=8).text
    messages[-1]["content"] += " "
    with pytest.raises(anthropic.BadRequestError, match="white space"):
        client.messages.create(model="tiny", max_tokens=8, messages=messages)


def test_stop_sequences_are_named(client, lm):
    whole = lm.generate(HELLO, max_tokens=30).text
    stop = whole[8:10]
    answer = client.messages.create(
        model="tiny", max_tokens=30, messages=HELLO, extra_body=GREEDY, stop_sequences=[stop]
    )
    assert answer.stop_reason == "stop_sequence" and answer.stop_sequence == stop
    assert answer.content[0].text == whole[: whole.index(stop)]


def test_counted_tokens_are_those_of_the_prompt(client, lm):
    counted = client.messages.count_tokens(model="tiny", messages=HELLO, system="Be brief")
    assert counted.input_tokens == len(lm.encode(HELLO, system="Be brief"))


def test_canvases_come_if_they_are_asked_for(server):
    body = {"model": "tiny", "max_tokens": 16, "messages": HELLO, "temperature": 0, "stream": True}
    plain = httpx.post(f"{server.url}/v1/messages", json=body, timeout=30).text
    asked = httpx.post(f"{server.url}/v1/messages", json={**body, "trifolium": {"drafts": True}}, timeout=30).text
    assert "trifolium_canvas" not in plain
    assert "event: trifolium_canvas" in asked and '"provisional":true' in asked


@pytest.mark.parametrize(
    "change, field",
    [
        ({"mcp_servers": [{"name": "f"}]}, "mcp_servers"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_result", "content": "x"}]}]}, "tool_result"),
        ({"messages": []}, "messages"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_cannot_be_done_is_said_in_the_apis_shape(server, change, field):
    body = {"model": "tiny", "max_tokens": 4, "messages": HELLO, **change}
    answer = httpx.post(f"{server.url}/v1/messages", json=body)
    assert answer.status_code == 400
    told = answer.json()
    assert told["type"] == "error" and told["error"]["type"] == "invalid_request_error"
    assert field in told["error"]["message"] and told["request_id"] == answer.headers["request-id"]


def test_errors_become_the_clients_exceptions(client):
    with pytest.raises(anthropic.NotFoundError, match="no model"):
        client.messages.create(model="claude", max_tokens=4, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="tiny", max_tokens=4, messages=[{"role": "user", "content": ""}] * 0)


def test_what_goes_wrong_in_a_stream_is_its_last_event(folder):
    with running(folder, timeout=0.4) as server, anthropic.Anthropic(base_url=server.url, api_key="any") as client:
        long = {"type": "json_schema", "schema": {"type": "string", "minLength": 7000}}
        text = ""
        with (
            pytest.raises(anthropic.APIStatusError, match="longer than the server allows") as caught,
            client.messages.stream(
                model="tiny", max_tokens=8000, messages=HELLO, extra_body={**GREEDY, "output_format": long}
            ) as stream,
        ):
            for piece in stream.text_stream:
                text += piece
        told = caught.value.body
        assert text and told["error"]["type"] == "timeout_error"
        assert told["request_id"] == caught.value.response.headers["request-id"]


def test_async_client_counts_and_creates(server, lm):
    async def ask() -> tuple[int, str]:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0) as client:
            counted = await client.messages.count_tokens(model="tiny", messages=HELLO)
            made = await client.messages.create(model="tiny", max_tokens=8, messages=HELLO, extra_body=GREEDY)
            return counted.input_tokens, made.content[0].text

    assert asyncio.run(ask()) == (len(lm.encode(HELLO)), lm.generate(HELLO, max_tokens=8).text)


def test_thinking_comes_in_a_block_of_its_own():
    blocks = Blocks()
    parts = [Said("reasoning", "hm"), Said("reasoning", " so"), Said("content", "Yes"), Said("content", ".")]
    events = b"".join([*blocks.add(parts[:1]), *blocks.add(parts[1:3]), *blocks.add(parts[3:]), *blocks.end()]).decode()
    kinds = [line.removeprefix("event: ") for line in events.splitlines() if line.startswith("event")]
    assert kinds == [
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
    ]  # fmt: skip
    assert '"index":1,"delta":{"type":"text_delta","text":"Yes"}' in events
