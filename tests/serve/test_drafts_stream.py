"""Streams that also tell of the unfinished canvas."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import pytest

from running_server import events_of

ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello there"}],
    "temperature": 0,
    "max_tokens": 40,
    "stream": True,
}


def told(http: httpx.Client, path: str = "/v1/chat/completions", **more: Any) -> list[dict[str, Any]]:
    with http.stream("POST", path, json={**ASKED, **more}) as response:
        assert response.status_code == 200, response.read()
        return list(events_of(response.iter_lines()))


def text_of(event: dict[str, Any]) -> str:
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in event["choices"])


@pytest.mark.parametrize("mode", ["verified", "diffusion"])
def test_canvases_are_valid_provisional_and_beside_the_text(http, lm, mode):
    schema = http.get("/trifolium/canvas.schema.json").json()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    events = told(http, trifolium={"drafts": True, "mode": mode})
    alone = lm.generate("Hello there", max_tokens=40, mode=mode)
    canvases = [event["trifolium"] for event in events if "trifolium" in event]
    assert len(canvases) >= 5
    committed = ""
    states = set()
    tokens = 0
    for event in events:
        if (canvas := event.get("trifolium")) is None:
            before, committed = committed, committed + text_of(event)
            assert committed.startswith(before) and alone.text.startswith(committed), "text that was told is final"
            continue
        assert event["choices"] == [], "ordinary clients see no text in it"
        validator.validate(canvas)
        assert canvas["provisional"] is True and canvas["index"] == 0
        assert canvas["request_id"] == event["id"]
        tokens = canvas["block_start"] - alone.prompt_tokens
        assert 0 <= tokens <= 40
        states |= {cell["state"] for cell in canvas["cells"]}
        for cell in canvas["cells"]:
            assert (cell["token"] is None) == (cell["state"] == "masked")
            if cell["token"] is not None and cell["token"] < lm.tokenizer.vocab_size:
                assert cell["text"] == lm.tokenizer.decode([cell["token"]], skip_special=True)
    assert committed == alone.text and tokens >= alone.tokens // 2
    assert "proposed" in states and ("pinned" in states) == (mode == "diffusion")
    starts = [canvas["block_start"] for canvas in canvases]
    assert starts == sorted(starts), "what is committed never comes back"


def test_pinned_cells_become_the_text(http, lm):
    """In diffusion, a pinned token of a canvas is the token that its position ends up with."""
    alone = lm.generate("Hello there", max_tokens=40, mode="diffusion")
    events = told(http, trifolium={"drafts": True, "mode": "diffusion"})
    pinned = 0
    for canvas in (event["trifolium"] for event in events if "trifolium" in event):
        for place, cell in enumerate(canvas["cells"], canvas["block_start"] - alone.prompt_tokens):
            if cell["state"] == "pinned" and place < alone.tokens:
                assert cell["token"] == alone.token_ids[place]
                pinned += 1
    assert pinned, "how many are seen depends on the reader's speed"


def test_a_canvas_stands_at_the_end_of_the_text_that_came_before(http, lm):
    """Every token byte is text here, so the committed bytes can be counted."""
    alone = lm.generate("Hello there", max_tokens=40)
    seen = 0
    for event in told(http, trifolium={"drafts": True}, logprobs=True):
        if "trifolium" in event:
            assert event["trifolium"]["block_start"] == alone.prompt_tokens + seen
        elif event["choices"] and (logprobs := event["choices"][0]["logprobs"]):
            seen += len(logprobs["content"])
    assert seen == alone.tokens


def test_canvases_come_only_if_asked(http, lm):
    for quiet in ({}, {"trifolium": {}}, {"trifolium": {"drafts": False, "free_rows": True}}):
        events = told(http, **quiet)
        assert not any("trifolium" in event for event in events)
        assert "".join(map(text_of, events)) == lm.generate("Hello there", max_tokens=40).text
    assert not any("trifolium" in event for event in told(http, trifolium={"drafts": True, "mode": "ar"}))
    whole = http.post("/v1/chat/completions", json={**ASKED, "stream": False, "trifolium": {"drafts": True}})
    assert whole.json()["choices"][0]["message"]["content"] == lm.generate("Hello there", max_tokens=40).text


def test_completions_and_choices_have_canvases_too(http, lm):
    body = {"prompt": ["abc", "xyz"], "max_tokens": 12, "stream": True, "trifolium": {"drafts": True}}
    with http.stream("POST", "/v1/completions", json=body) as response:
        events = list(events_of(response.iter_lines()))
    canvases = [event["trifolium"] for event in events if "trifolium" in event]
    assert {canvas["index"] for canvas in canvases} == {0, 1}
    chat = told(http, n=2, seed=1, temperature=1, trifolium={"drafts": True})
    assert {event["trifolium"]["index"] for event in chat if "trifolium" in event} == {0, 1}


def test_the_schema_refuses_what_is_no_canvas(http):
    validator = jsonschema.Draft202012Validator(http.get("/trifolium/canvas.schema.json").json())
    good = {"type": "canvas", "request_id": "a", "index": 0, "block_start": 3, "provisional": True, "cells": []}
    validator.validate(good)
    cell = {"state": "final", "token": 1, "text": "a", "confidence": 1}
    for wrong in ({"provisional": False}, {"index": -1}, {"more": 1}, {"cells": [cell]}, {"request_id": None}):
        assert not validator.is_valid({**good, **wrong})
