"""Who may call, what is counted and logged of it, and other models than the first."""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import trifolium
from running_server import RunningServer, events_of, running
from trifolium.api import LM
from trifolium.checkpoint import Shelf
from trifolium.serve.log import JsonLines

KEY = "sesame-☘-4711"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a private matter"}], "temperature": 0}


@pytest.fixture(scope="module")
def guarded(folder: Path) -> Iterator[RunningServer]:
    with running(folder, api_key=KEY, cors_origins=("https://page.example",)) as server:
        yield server


@pytest.fixture
def lines(caplog) -> Any:
    """The log so far, as it would be printed, line by line."""
    caplog.set_level(logging.INFO, "trifolium.serve")
    own = JsonLines()
    return lambda: [json.loads(own.format(record)) for record in caplog.records if record.name == "trifolium.serve"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {KEY}".encode()},
        {"Authorization": KEY.encode()},
        {"X-Api-Key": "wrong"},
        {"X-Api-Key": KEY.encode() + b"x"},
        {"X-Api-Key": b"\xff\xfe"},
    ],
)
def test_the_key_is_needed_everywhere_but_for_the_page_and_health(guarded, headers):
    with httpx.Client(base_url=guarded.url, headers=headers) as client:
        for path in ("/v1/models", "/metrics", "/openapi.json", "/trifolium/canvas.schema.json", "/nothing"):
            assert client.get(path).status_code == 401
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
            error = client.post(path, json=CHAT).json()["error"]
            assert error["type"] == "authentication_error" and error["code"] == "invalid_api_key"
            assert "sesame" not in json.dumps(error)
        assert client.post("/v1/messages", json=CHAT).json()["error"]["type"] == "authentication_error"
        assert client.post("/v1/messages", json=CHAT).json()["type"] == "error", "in the shape of its API"
        assert client.get("/").status_code == client.get("/health").status_code == 200


def test_the_key_lets_in_as_either_header(guarded):
    for headers in ({"Authorization": f"Bearer {KEY}".encode()}, {"authorization": b"bearer  " + KEY.encode()}):
        assert guarded.client.get("/v1/models", headers=headers).status_code == 200
    assert guarded.client.get("/v1/models", headers={"x-api-key": KEY.encode()}).status_code == 200


def test_a_wrong_key_is_the_clients_authentication_error(guarded):
    client = openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong")
    with client, pytest.raises(openai.AuthenticationError, match="valid API key"):
        client.models.list()


def test_keys_are_compared_in_constant_time(guarded, monkeypatch):
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b))
    guarded.client.get("/v1/models", headers={"x-api-key": "almost"})
    assert compared == [(b"almost", KEY.encode())]


def test_cors_is_off_unless_an_origin_is_named(server, guarded):
    asks = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    asks["Access-Control-Request-Headers"] = "authorization"
    allow = "access-control-allow-origin"
    assert allow not in server.client.get("/health", headers=asks).headers
    assert server.client.options("/v1/chat/completions", headers=asks).status_code == 405
    before = guarded.client.options("/v1/chat/completions", headers=asks)
    assert before.status_code == 200 and before.headers[allow] == asks["Origin"]
    assert guarded.client.get("/v1/models", headers=asks).headers[allow] == asks["Origin"], "even of a 401"
    assert allow not in guarded.client.get("/health", headers={"Origin": "https://other.example"}).headers


def test_a_server_without_a_key_answers_to_its_own_names_only(folder):
    """Another site's page can't reach it by making its own name point to this machine."""
    with running(folder, hosts=("127.0.0.1", "localhost", "::1")) as server:
        for host in ("127.0.0.1", "localhost:8000", "LOCALHOST", "[::1]:80"):
            assert server.client.get("/v1/models", headers={"Host": host}).status_code == 200
        for host in ("evil.example", "127.0.0.1.evil.example:8000", "", "localhost@evil.example", "[::2]"):
            answer = server.client.get("/v1/models", headers={"Host": host})
            assert answer.status_code == 403 and answer.json()["error"]["code"] == "wrong_host"


def test_one_line_a_request_without_prompts_or_keys(guarded, lines):
    body = {**CHAT, "max_tokens": 5}
    with httpx.Client(base_url=guarded.url, headers={"X-Api-Key": KEY.encode(), "X-Request-Id": "mine-1"}) as client:
        answer = client.post("/v1/chat/completions?private=query", json=body)
        client.post("/v1/chat/completions", json={**body, "private matter": 1})
        client.get("/v1/models/private-matter")
        client.get("/private/matter")
    assert answer.headers["x-request-id"] == "mine-1" and answer.json()["id"] == "chatcmpl-mine-1"
    told = lines()
    assert [(line["method"], line["path"], line["status"]) for line in told] == [
        ("POST", "/v1/chat/completions", 200),
        ("POST", "/v1/chat/completions", 400),
        ("GET", "/v1/models/{name:path}", 404),
        ("GET", "other", 404),
    ]
    assert all(line["id"] == "mine-1" and line["seconds"] >= 0 and line["event"] == "request" for line in told)
    text = json.dumps(told)
    assert "private" not in text and "sesame" not in text
    assert KEY not in repr(guarded.settings)


def test_prompts_are_logged_if_asked(folder, lines, lm):
    with running(folder, log_prompts=True) as server, httpx.Client(base_url=server.url) as client:
        client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 5})
        with client.stream("POST", "/v1/chat/completions", json={**CHAT, "max_tokens": 5, "stream": True}) as response:
            list(events_of(response.iter_lines()))
        client.post("/v1/completions", json={"prompt": "a private line", "max_tokens": 5})
    told = lines()
    answer = lm.generate("a private matter", max_tokens=5).text
    chats = [line for line in told if line["event"] == "chat"]
    assert len(chats) == 2 and all(line["answers"] == [answer] for line in chats)
    assert all(line["prompt"] == [{"role": "user", "content": "a private matter"}] for line in chats)
    assert [line["prompt"] for line in told if line["event"] == "completion"] == ["a private line"]


@pytest.mark.parametrize("sent", ["a b", "x" * 65, "", "a\tb", "né", "../../etc", "a;b", "%0d%0aSet-Cookie:1"])
def test_request_ids_that_could_do_harm_are_replaced(server, sent):
    answer = server.client.get("/health", headers={"x-request-id": sent.encode()})
    assert answer.headers["x-request-id"].startswith("req_")
    assert len({server.client.get("/health").headers["x-request-id"] for _ in range(3)}) == 3


def test_metrics_count_answers_passes_and_tokens(folder, lm):
    with running(folder) as server, httpx.Client(base_url=server.url) as client:
        body = {**CHAT, "max_tokens": 12, "ignore_eos": True}
        usage = client.post("/v1/chat/completions", json=body).json()["usage"]
        again = client.post("/v1/chat/completions", json=body).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert again["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
        client.post("/v1/chat/completions", json={})
        text = client.get("/metrics").text
        assert 'trifolium_tokens_total{mode="verified",model="tiny"} 24.0' in text
        assert f'trifolium_prompt_tokens_total{{from="cache",model="tiny"}} {usage["prompt_tokens"] - 1:.1f}' in text
        assert 'trifolium_answers_total{finish_reason="length",mode="verified",model="tiny"} 2.0' in text
        assert 'trifolium_requests_total{path="/v1/chat/completions",status="400"} 1.0' in text
        assert 'trifolium_requests_total{path="/v1/chat/completions",status="200"} 2.0' in text
        passes = usage["trifolium"]["passes"] + again["trifolium"]["passes"]
        assert f'trifolium_answer_passes_total{{mode="verified",model="tiny"}} {passes:.1f}' in text


class Loads:
    """Loads the models of a shelf, slowly, and remembers which."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: list[str] = []

    def __call__(self, name: str) -> LM:
        self.names.append(name)
        lm = trifolium.load(self.folder, adapter=None, dtype="float32")
        lm.name = name
        return lm


def test_other_models_are_loaded_on_request_and_make_room(folder):
    loads = Loads(folder)
    first, second = sorted(Shelf.default().entries)[:2]
    with running(folder, loads, load_models=True, max_models=2) as server, httpx.Client(base_url=server.url) as client:

        def ask(model: str) -> httpx.Response:
            return client.post("/v1/chat/completions", json={**CHAT, "model": model, "max_tokens": 3})

        assert {first, second, "tiny"} <= {model["id"] for model in client.get("/v1/models").json()["data"]}
        assert ask("tiny").json()["model"] == "tiny" and loads.names == []
        assert ask(first).json()["model"] == first
        assert ask(first).status_code == 200 and loads.names == [first]
        assert ask(second).json()["model"] == second and loads.names == [first, second]
        assert set(server.app.state.service.models.loaded) == {"tiny", second}, "the one not in use made room"
        for name in ("../tiny", str(folder), "owner/model"):
            assert ask(name).status_code == 404
        assert loads.names == [first, second]
        busy = {**CHAT, "model": second, "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=busy) as response:
            lines = response.iter_lines()
            next(lines)
            full = server.client.post("/v1/chat/completions", json={**CHAT, "model": first, "max_tokens": 3})
            assert full.status_code == 503 and full.json()["error"]["code"] == "model_unavailable"
