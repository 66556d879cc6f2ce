"""The official openai client's responses against the running server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import httpx
import openai
import pytest

from running_server import running
from trifolium.serve.store import Store, Stored

GREEDY = {"model": "tiny", "temperature": 0}
LONG = {"type": "json_schema", "name": "long", "schema": {"type": "string", "minLength": 7000}}
ENDLESS = {"input": "Hello", "max_output_tokens": 8000, "text": {"format": LONG}, **GREEDY}
"""What doesn't end by itself before anybody can end it."""


@pytest.fixture
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def test_a_response_equals_the_model(client, lm):
    expected = lm.generate("Hello there", system="Be brief", max_tokens=20)
    answer = client.responses.create(
        input="Hello there", instructions="Be brief", max_output_tokens=20, metadata={"a": "b"}, **GREEDY
    )
    assert answer.output_text == expected.text and answer.output[0].role == "assistant"
    assert answer.status == {"stop": "completed", "length": "incomplete"}[expected.finish_reason]
    assert answer.usage.input_tokens == expected.prompt_tokens and answer.usage.output_tokens == expected.tokens
    assert answer.metadata == {"a": "b"} and answer.instructions == "Be brief" and answer.error is None
    assert answer.completed_at >= answer.created_at


def test_max_output_tokens_leaves_it_incomplete(client):
    answer = client.responses.create(input="Hello", max_output_tokens=3, **GREEDY)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage.output_tokens == 3 and answer.output[0].status == "incomplete"


def test_items_and_parts_are_read(client, lm):
    items = [
        {"role": "developer", "content": "Be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]},
        {"role": "user", "content": "Again"},
    ]
    messages = [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Again"},
    ]
    answer = client.responses.create(input=items, max_output_tokens=9, **GREEDY)
    assert answer.output_text == lm.generate(messages, max_tokens=9).text


def test_going_on_from_a_previous_response(client, lm):
    first = client.responses.create(input="Hello", instructions="Be brief", max_output_tokens=6, **GREEDY)
    second = client.responses.create(input="Again", previous_response_id=first.id, max_output_tokens=6, **GREEDY)
    third = client.responses.create(input="More", previous_response_id=second.id, max_output_tokens=6, **GREEDY)
    messages = [{"role": "user", "content": "Hello"}]  # instructions are not handed on
    for text, answer, question in ((first.output_text, second, "Again"), (second.output_text, third, "More")):
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": question}]
        assert answer.output_text == lm.generate(messages, max_tokens=6).text
    assert second.previous_response_id == first.id


def test_stored_responses_can_be_asked_for_and_deleted(client):
    made = client.responses.create(input="Hello", max_output_tokens=4, **GREEDY)
    assert client.responses.retrieve(made.id).output_text == made.output_text
    listed = client.responses.input_items.list(made.id)
    assert [item.content[0].text for item in listed.data] == ["Hello"] and listed.data[0].id.startswith("msg_")
    client.responses.delete(made.id)
    for ask in (client.responses.retrieve, client.responses.input_items.list, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="no response"):
            ask(made.id)
    unkept = client.responses.create(input="Hello", max_output_tokens=4, store=False, **GREEDY)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(input="x", previous_response_id=unkept.id, **GREEDY)


def test_input_items_come_in_pages(client):
    items = [{"role": "user", "content": str(i)} for i in range(5)]
    made = client.responses.create(input=items, max_output_tokens=2, **GREEDY)
    texts = [item.content[0].text for item in client.responses.input_items.list(made.id, limit=2, order="asc")]
    assert texts == ["0", "1", "2", "3", "4"]
    page = client.responses.input_items.list(made.id, limit=2)
    assert [item.content[0].text for item in page.data] == ["4", "3"] and page.has_more


def test_streams_tell_every_step(client, lm):
    expected = lm.generate("Hello there", max_tokens=24)
    events = list(client.responses.create(input="Hello there", max_output_tokens=24, stream=True, **GREEDY))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    last = "response.incomplete" if expected.finish_reason == "length" else "response.completed"
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        last,
    ]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == expected.text and len(deltas) > 1
    final = events[-1].response
    assert final.output_text == expected.text and events[0].response.output == []
    assert {event.item_id for event in deltas} == {final.output[0].id}
    assert client.responses.retrieve(final.id).output_text == expected.text


def test_the_stream_helper_gathers_the_same(client, lm):
    expected = lm.generate("Hello there", max_tokens=12)
    with client.responses.stream(input="Hello there", **GREEDY, max_output_tokens=12) as stream:
        events = list(stream)
    gathered = [event.snapshot for event in events if event.type == "response.output_text.delta"]
    assert gathered[-1] == expected.text and events[-1].response.output_text == expected.text


def test_async_client_with_many_at_once(server, lm):
    prompts = [f"Question {i}" for i in range(8)]
    expected = [lm.generate(prompt, max_tokens=12).text for prompt in prompts]

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            made = [client.responses.create(input=prompt, max_output_tokens=12, **GREEDY) for prompt in prompts]
            return [answer.output_text for answer in await asyncio.gather(*made)]

    assert asyncio.run(ask()) == expected


def test_logprobs_come_if_they_are_included(client, lm):
    expected = lm.generate("Hello", max_tokens=6, logprobs=2).logprobs
    made = client.responses.create(
        input="Hello", max_output_tokens=6, top_logprobs=2, include=["message.output_text.logprobs"], **GREEDY
    )
    told = made.output[0].content[0].logprobs
    assert [one.logprob for one in told] == pytest.approx([one.logprob for one in expected])
    assert all(len(one.top_logprobs) == 2 for one in told)
    plain = client.responses.create(input="Hello", max_output_tokens=6, top_logprobs=2, **GREEDY)
    assert plain.output[0].content[0].logprobs == []


def test_canvases_come_if_they_are_asked_for(server):
    body = {"input": "Hello", "max_output_tokens": 12, "stream": True, **GREEDY}
    asked = httpx.post(f"{server.url}/v1/responses", json={**body, "trifolium": {"drafts": True}}, timeout=30).text
    assert "event: trifolium.canvas" in asked and '"provisional":true' in asked
    assert "trifolium.canvas" not in httpx.post(f"{server.url}/v1/responses", json=body, timeout=30).text


def test_background_responses_run_on(client, lm):
    made = client.responses.create(input="Hello", max_output_tokens=20, background=True, **GREEDY)
    assert made.status in ("queued", "in_progress")
    until = time.monotonic() + 20
    while made.status in ("queued", "in_progress"):
        assert time.monotonic() < until
        time.sleep(0.05)
        made = client.responses.retrieve(made.id)
    assert made.output_text == lm.generate("Hello", max_tokens=20).text
    events = list(client.responses.retrieve(made.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    later = list(client.responses.retrieve(made.id, stream=True, starting_after=2))
    assert [event.sequence_number for event in later] == list(range(3, len(events)))


def test_background_responses_can_be_cancelled(client, server):
    made = client.responses.create(background=True, **ENDLESS)
    ended = client.responses.cancel(made.id)
    assert ended.status == client.responses.retrieve(made.id).status == client.responses.cancel(made.id).status
    assert ended.status == "cancelled" and ended.usage.output_tokens < 6000
    server.wait_until_idle()
    kinds = [event.type for event in client.responses.retrieve(made.id, stream=True)]
    assert kinds[0] == "response.created", "those who follow are let go at the end"
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(client.responses.create(input="Hi", max_output_tokens=2, **GREEDY).id)


def test_streams_of_background_responses_follow_them(client, lm):
    events = list(client.responses.create(input="Hello", max_output_tokens=12, background=True, stream=True, **GREEDY))
    assert events[-1].response.output_text == lm.generate("Hello", max_tokens=12).text


@pytest.mark.parametrize(
    "change, field",
    [
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"text": {"format": {"type": "poem"}}}, "text.format.type"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content"),
        ({"input": [{"role": "pirate", "content": "x"}]}, "input.0.role"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
        ({"nonsense": 1}, "nonsense"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
    ],
)
def test_what_cannot_be_done_is_said_with_its_field(server, change, field):
    answer = httpx.post(f"{server.url}/v1/responses", json={"input": "Hello", **GREEDY, **change})
    assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == field


def test_the_store_is_bounded(folder):
    with (
        running(folder, max_stored=2) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        ids = [client.responses.create(input=str(i), max_output_tokens=1, **GREEDY).id for i in range(3)]
        with pytest.raises(openai.NotFoundError, match="forgotten"):
            client.responses.retrieve(ids[0])
        client.responses.retrieve(ids[1])  # asked for just now: the third goes first
        client.responses.create(input="x", max_output_tokens=1, **GREEDY)
        client.responses.retrieve(ids[1])
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(ids[2])


def test_running_responses_are_not_forgotten():
    async def fill() -> Store:
        store = Store(1)
        store.put(Stored({"id": "running"}, [], []))
        for i in range(3):
            done = Stored({"id": str(i)}, [], [])
            done.over.set()
            store.put(done)
        return store

    store = asyncio.run(fill())
    assert store.get("running") and len(store) == 1


def test_an_id_that_a_client_chose_twice_takes_nobodys_place(server):
    made = [
        server.client.post(
            "/v1/responses", json={"input": text, "max_output_tokens": 2, **GREEDY}, headers={"X-Request-Id": "mine"}
        )
        for text in ("one", "two")
    ]
    assert {answer.headers["x-request-id"] for answer in made} == {"mine"}
    ids = [answer.json()["id"] for answer in made]
    asked = [server.client.get(f"/v1/responses/{id}/input_items").json()["data"][0]["content"][0]["text"] for id in ids]
    assert asked == ["one", "two"]


def test_streams_are_followed_from_an_event_that_can_be(server, client):
    made = client.responses.create(input="Hello", max_output_tokens=2, background=True, **GREEDY)
    answer = server.client.get(f"/v1/responses/{made.id}", params={"stream": True, "starting_after": -2})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "starting_after"


def test_what_breaks_off_says_so_and_nothing_goes_on_from_it(folder):
    with (
        running(folder, timeout=0.4) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        events = list(client.responses.create(stream=True, **ENDLESS))
        final = events[-1].response
        assert events[-1].type == "response.failed" and "longer than the server allows" in final.error.message
        assert [item.status for item in final.output] == ["incomplete"] and final.output_text
        kept = client.responses.retrieve(final.id)
        assert kept.status == "failed" and kept.output == final.output
        with pytest.raises(openai.BadRequestError, match="broke off"):
            client.responses.create(input="More", previous_response_id=final.id, max_output_tokens=2, **GREEDY)
        with pytest.raises(openai.InternalServerError, match="longer than"):
            client.responses.create(**ENDLESS)


def test_a_listener_that_leaves_ends_the_response(server):
    with server.client.stream("POST", "/v1/responses", json={**ENDLESS, "stream": True}) as stream:
        told = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        id = next(told)["response"]["id"]
        assert any(event["type"] == "response.output_text.delta" for event in told)
    server.wait_until_idle()
    kept = server.client.get(f"/v1/responses/{id}").json()
    until = time.monotonic() + 5
    while kept["status"] == "in_progress":
        assert time.monotonic() < until
        time.sleep(0.02)
        kept = server.client.get(f"/v1/responses/{id}").json()
    assert kept["status"] == "cancelled" and kept["output"][0]["status"] == "incomplete"


def test_the_async_client_keeps_follows_and_cancels(server):
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            async with client.responses.stream(input="Hello", max_output_tokens=6, **GREEDY) as stream:
                made = [event async for event in stream][-1].response
            kept = await client.responses.retrieve(made.id)
            listed = await client.responses.input_items.list(made.id)
            endless = await client.responses.create(background=True, **ENDLESS)
            ended = await client.responses.cancel(endless.id)
            assert kept.output_text == made.output_text and listed.data[0].content[0].text == "Hello"
            assert kept.status == made.status and ended.status == "cancelled"

    asyncio.run(ask())
