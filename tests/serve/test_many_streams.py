"""What comes over HTTP is what the model says alone, however many ask at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from running_server import RunningServer, event_of, running
from trifolium.serve.streaming import sse

CHATS = 200


async def streamed(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[str, str | None]:
    """(text, finish reason) of a streaming chat that ends with [DONE]."""
    text, reason, done = "", None, False
    async with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if (event := event_of(line)) is not None:
                for choice in event["choices"]:
                    text += choice["delta"].get("content", "")
                    reason = choice["finish_reason"] or reason
            done = done or line == "data: [DONE]"
    assert done
    return text, reason


def ask_all(server: RunningServer, bodies: list[dict[str, Any]]) -> list[tuple[str, str | None]]:
    async def go() -> list[tuple[str, str | None]]:
        limits = httpx.Limits(max_connections=len(bodies))
        async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=limits) as client:
            return await asyncio.gather(*(streamed(client, body) for body in bodies))

    return asyncio.run(go())


def test_200_streaming_chats_each_equal_to_its_solo_output(server, lm):
    prompts = [f"{'Tell me of ' * (i % 7)}clover number {i}" for i in range(CHATS)]
    bodies = [
        {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": 8 + i % 9}
        for i, prompt in enumerate(prompts)
    ]
    told = ask_all(server, bodies)
    for i, (prompt, (text, reason)) in enumerate(zip(prompts, told, strict=True)):
        alone = lm.generate(prompt, max_tokens=8 + i % 9)
        assert (text, reason) == (alone.text, alone.finish_reason), prompt
    server.wait_until_idle()


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_verified_equals_ar_over_http_with_any_company(server, temperature):
    def bodies(mode: str) -> list[dict[str, Any]]:
        return [
            {
                "messages": [{"role": "user", "content": f"Line {i}"}],
                "temperature": temperature,
                "seed": i,
                "max_tokens": 24,
                "trifolium": {"mode": mode, "free_rows": True},
            }
            for i in range(10)
        ]

    together = ask_all(server, bodies("verified"))
    assert together == ask_all(server, bodies("ar"))
    assert together == [ask_all(server, [body])[0] for body in bodies("verified")]
    assert len(set(together)) == 10


def test_more_than_the_server_takes_are_told_to_come_back_and_none_is_lost(folder, lm):
    """Clients that wait as told get their answers; those that were let in lose nothing."""
    with running(folder, max_open=6) as server:
        body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 60}

        async def one(client: httpx.AsyncClient) -> int:
            turned_away = 0
            while (answer := await client.post("/v1/chat/completions", json=body)).status_code == 429:
                assert int(answer.headers["retry-after"]) >= 1
                assert answer.json()["error"]["type"] == "rate_limit_error"
                turned_away += 1
                await asyncio.sleep(0.05)
            assert answer.json()["choices"][0]["message"]["content"] == expected
            return turned_away

        async def go() -> list[int]:
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                return await asyncio.gather(*(one(client) for _ in range(30)))

        expected = lm.generate("Hi", max_tokens=60).text
        turned_away = asyncio.run(go())
        assert sum(turned_away) > 0 and turned_away.count(0) >= 6
        server.wait_until_idle()
        too_many = server.client.post("/v1/chat/completions", json={**body, "n": 7})
        assert too_many.status_code == 400 and "room for 6" in too_many.text


def test_events_are_single_lines():
    """Text can't end an event early: line breaks are escaped, whatever they are."""
    assert sse({"text": "a\n\ndata: [DONE]\r\u2028"}).count(b"\n") == 2
