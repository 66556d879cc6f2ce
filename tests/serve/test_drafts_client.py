"""trifolium.client against the running server."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import aclosing, closing
from typing import Any

import pytest

from running_server import running
from trifolium.client import AsyncClient, Canvas, Cell, Client, Event, Finished, Text
from trifolium.errors import ConfigError, ServerError

ASKED: dict[str, Any] = {"temperature": 0, "max_tokens": 30}


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def test_an_answer_with_drafts(server, lm):
    with Client(server.url) as client:
        events = list(client.chat("Hello there", drafts=True, **ASKED))
        plain = list(client.chat([{"role": "user", "content": "Hello there"}], **ASKED))
    alone = lm.generate("Hello there", max_tokens=30)
    last = events[-1]
    assert isinstance(last, Finished) and last.text == text_of(events) == alone.text
    assert last.finish_reason == alone.finish_reason and last.usage["completion_tokens"] == alone.tokens
    canvases = [event for event in events if isinstance(event, Canvas)]
    assert len(canvases) > 5 and all(canvas.cells for canvas in canvases)
    assert [c.block_start for c in canvases] == sorted(c.block_start for c in canvases)
    assert text_of(plain) == alone.text and not any(isinstance(event, Canvas) for event in plain)


def test_diffusion_pins(server):
    with Client(f"{server.url}/v1/") as client:
        events = list(client.chat("Hello there", drafts=True, trifolium={"mode": "diffusion"}, **ASKED))
    canvases = [event for event in events if isinstance(event, Canvas)]
    assert {"proposed", "pinned"} <= {cell.state for canvas in canvases for cell in canvas.cells}
    cells = (Cell("pinned", 1, "a", 1.0), Cell("masked", None, "", 0.0), Cell("proposed", 2, "b", 0.3))
    assert Canvas(3, cells).preview("_") == "a_b"


def test_async(server, lm):
    async def ask() -> list[list[Event]]:
        async with AsyncClient(server.url) as client:

            async def one(prompt: str) -> list[Event]:
                return [event async for event in client.chat(prompt, drafts=True, **ASKED)]

            return await asyncio.gather(one("Hello"), one("Goodbye"))

    for prompt, events in zip(("Hello", "Goodbye"), asyncio.run(ask()), strict=True):
        assert text_of(events) == lm.generate(prompt, max_tokens=30).text
        assert isinstance(events[-1], Finished)


def test_leaving_cancels(server):
    endless: dict[str, Any] = {"max_tokens": 8000, "ignore_eos": True}
    with Client(server.url) as client, closing(client.chat("Go on", **endless)) as events:
        next(events)
        assert server.open == 1
    server.wait_until_idle(2)

    async def leave() -> None:
        async with AsyncClient(server.url) as client, aclosing(client.chat("Go on", **endless)) as events:
            await anext(events)

    asyncio.run(leave())
    server.wait_until_idle(2)


def test_errors_say_what_the_server_says(folder):
    with running(folder, api_key="a ☘ key", timeout=0.3) as server:
        with Client(server.url) as client, pytest.raises(ServerError, match="valid API key") as refused:
            list(client.chat("Hello"))
        assert refused.value.status == 401 and refused.value.code == "invalid_api_key"
        with Client(server.url, api_key="a ☘ key") as client:
            with pytest.raises(ServerError, match="no model 'other'"):
                list(client.chat("Hello", model="other"))
            with pytest.raises(ServerError, match="longer than the server allows") as late:
                list(client.chat("Hello", max_tokens=8000, ignore_eos=True))
            assert late.value.status is None and late.value.code == "timeout"
            with pytest.raises(ConfigError, match="chat\\(\\) sets n, stream itself"):
                client.chat("Hello", n=2, stream=False)

    async def refuse() -> None:
        async with AsyncClient(server.url) as client:
            _ = [event async for event in client.chat("Hello")]

    with pytest.raises(ServerError, match="is `trifolium serve` running"):
        asyncio.run(refuse())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 4\r\n\r\nnope", "status 502"),
        (b"HTTP/1.1 500 Bad\r\nContent-Length: 2\r\n\r\n[]", "status 500"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: [DONE]\n\n", "broke off"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n: hello\n\n", "broke off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n: hello\n\n", "failed"),
    ],
)
def test_what_is_no_answer(answer, message):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client,
            pytest.raises(ServerError, match=message),
        ):
            list(client.chat("Hello"))
        thread.join()
