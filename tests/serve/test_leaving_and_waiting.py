"""Clients that leave, read slowly or wait; long prompts, time limits, and an engine that fails."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import httpx
import pytest

from running_server import RunningServer, event_of, events_of, raw_post, running

ENDLESS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Go on and on"}],
    "temperature": 0,
    "ignore_eos": True,
    "max_tokens": 8000,
}


def is_freed_soon(server: RunningServer) -> bool:
    """Whether what was left ends at once, which an answer of 8,000 tokens doesn't."""
    started = time.monotonic()
    server.wait_until_idle()
    passes = server.engine()["passes"]
    time.sleep(0.05)
    assert server.engine()["passes"] == passes
    return time.monotonic() - started < 2


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"trifolium": {"drafts": True}}])
def test_leaving_a_stream_frees_the_engine(server, http, more):
    with http.stream("POST", "/v1/chat/completions", json={**ENDLESS, **more, "stream": True}) as response:
        lines = response.iter_lines()
        for _ in range(8):
            next(lines)
        assert server.open >= 1
    assert is_freed_soon(server)


def test_leaving_while_the_answer_is_made_frees_the_engine(server):
    plain = {"prompt": "Go on", "ignore_eos": True, "max_tokens": 8000}
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/v1/chat/completions", json=ENDLESS, timeout=0.3)
    assert is_freed_soon(server)
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/v1/completions", json=plain, timeout=0.3)
    assert is_freed_soon(server)


def test_leaving_at_once_frees_the_engine(server):
    """Clients that are gone before the first byte of their answer, or anywhere around it."""
    for i in range(40):
        connection = raw_post(server, {**ENDLESS, "stream": i % 2 == 0})
        time.sleep(0.001 * (i % 5))
        connection.close()
    time.sleep(0.3)  # all of them have been seen by then
    assert is_freed_soon(server)


def test_a_long_prompt_that_is_left_is_read_no_further(server, http):
    long = {**ENDLESS, "messages": [{"role": "user", "content": "n" * 8500}], "stream": True}
    before = server.engine()["passes"]
    connection = raw_post(server, long)
    while server.engine()["passes"] < before + 2:
        time.sleep(0.005)
    connection.close()
    assert is_freed_soon(server)
    assert server.engine()["passes"] - before < 8500 / 256, "its chunks weren't all computed"


def test_a_slow_reader_loses_no_text_and_gets_the_latest_canvas(folder, lm):
    """The answer is finished long before it is read; canvases that nobody saw are skipped."""
    asked = {**ENDLESS, "max_tokens": 300, "stream": True, "trifolium": {"drafts": True}}
    with running(folder, send_buffer=8192) as server, raw_post(server, asked) as connection:
        while server.engine()["passes"] < 100:
            time.sleep(0.02)
        server.wait_until_idle(60)
        reader = connection.makefile("r", encoding="utf-8", newline="\n")
        lines = [line.strip() for line in reader]
        reader.close()
    events = [event for line in lines if line.startswith("data: ") and (event := event_of(line))]
    assert "data: [DONE]" in lines
    text = "".join(choice["delta"].get("content", "") for event in events for choice in event["choices"])
    alone = lm.generate("Go on and on", max_tokens=300, ignore_eos=True)
    assert text == alone.text
    assert 0 < sum("trifolium" in event for event in events) < 250, "of 300 passes"


def test_short_chats_are_answered_while_a_long_prompt_is_read(server, http, lm):
    long = {"messages": [{"role": "user", "content": "m" * 4000}], "temperature": 0, "max_tokens": 4}
    ended: dict[str, float] = {}

    def ask() -> None:
        answer = server.client.post("/v1/chat/completions", json=long, timeout=120).json()
        ended["long"] = time.monotonic()
        ended["prompt_tokens"] = answer["usage"]["prompt_tokens"]

    before = server.engine()["passes"]
    thread = threading.Thread(target=ask)
    thread.start()
    while server.engine()["passes"] <= before:
        time.sleep(0.005)
    started = time.monotonic()
    short = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 3, "stream": True}
    text = ""
    with http.stream("POST", "/v1/chat/completions", json=short) as response:
        for event in events_of(response.iter_lines()):
            text += "".join(choice["delta"].get("content", "") for choice in event["choices"])
    waited = time.monotonic() - started
    thread.join()
    assert text == lm.generate("Hi", max_tokens=3).text
    assert ended["prompt_tokens"] > 4000
    assert waited < (ended["long"] - started) / 2, "the short one hasn't waited for the long one"


def test_answers_end_at_the_time_limit(folder):
    with running(folder, timeout=0.4) as server:
        answer = server.client.post("/v1/chat/completions", json=ENDLESS)
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "timeout"
        with server.client.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True}) as response:
            events = [event for line in response.iter_lines() if (event := event_of(line))]
        assert events[-1]["error"]["code"] == "timeout" and events[1]["choices"][0]["delta"]
        assert is_freed_soon(server)
        assert server.client.post("/v1/chat/completions", json={**ENDLESS, "max_tokens": 2}).status_code == 200


def test_the_servers_own_limit_of_tokens(folder):
    with running(folder, max_tokens=7) as server:
        for asked in (None, 3, 100):
            body = {**ENDLESS, "max_tokens": asked}
            answer = server.client.post("/v1/chat/completions", json=body).json()
            assert answer["usage"]["completion_tokens"] == min(asked or 7, 7)
            assert answer["choices"][0]["finish_reason"] == "length"


def test_an_engine_that_fails_ends_its_requests_and_goes_on(folder, lm, monkeypatch, caplog):
    caplog.set_level(logging.ERROR, "trifolium.serve")
    with running(folder) as server:
        step, left = server.lm.engine.step, [5]

        def fail() -> bool:
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError(f"a bug in {folder}")
            return step()

        monkeypatch.setattr(server.lm.engine, "step", fail)
        answer = server.client.post("/v1/chat/completions", json=ENDLESS)
        assert answer.status_code == 500 and answer.json()["error"]["message"] == "internal error"
        assert str(folder) in caplog.text and str(folder) not in answer.text
        assert is_freed_soon(server)
        short = {**ENDLESS, "max_tokens": 9}
        answer = server.client.post("/v1/chat/completions", json=short)
        alone = lm.generate("Go on and on", max_tokens=9, ignore_eos=True)
        assert answer.json()["choices"][0]["message"]["content"] == alone.text


def test_a_server_that_stops_tells_what_is_open(folder):
    """A stream that can't be waited for ends with an error event, not with silence."""
    with running(folder) as server:
        with server.client.stream("POST", "/v1/chat/completions", json={**ENDLESS, "stream": True}) as response:
            lines = response.iter_lines()
            while "content" not in next(lines):
                pass
            server.loop.call_soon_threadsafe(server.app.state.service.models.end)
            events = [event for line in lines if (event := event_of(line))]
        assert events[-1]["error"]["code"] == "shutting_down"
        late = server.client.post("/v1/chat/completions", json=ENDLESS)
        assert late.status_code == 503 and late.json()["error"]["type"] == "server_error"
