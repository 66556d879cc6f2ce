"""The real application under a real HTTP server, on a free port of this machine."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

import trifolium
from trifolium.api import LM
from trifolium.serve import ServeSettings, create_app

MODEL = "tiny"


@dataclass(frozen=True)
class RunningServer:
    """`lm` belongs to the server: compare with another one of the same folder."""

    url: str
    lm: LM
    settings: ServeSettings
    app: Any
    client: httpx.Client
    """Without a key. One for all: to make one takes as long as many an answer."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The server's event loop, which runs on another thread."""
        loop: asyncio.AbstractEventLoop = self.app.state.service.loop
        return loop

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def engine(self) -> dict[str, float]:
        """What /metrics says of the engine."""
        text = self.client.get("/metrics", headers=self.key_header).text
        found = re.findall(r'trifolium_engine\{model="\w+",what="(\w+)"\} (\S+)', text)
        return {name: float(value) for name, value in found}

    def counter(self, name: str, **labels: str) -> float:
        """The sum of a counter of /metrics over everything but these labels."""
        text = httpx.get(f"{self.url}/metrics", headers=self.key_header).text
        lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))

    @property
    def key_header(self) -> dict[str, str]:
        key = self.settings.api_key
        return {} if key is None else {"Authorization": f"Bearer {key}"}

    @property
    def open(self) -> int:
        """Requests that the server counts as running or waiting."""
        return sum(worker.open for worker in self.app.state.service.models.loaded.values())

    def wait_until_idle(self, seconds: float = 10.0) -> None:
        """Returns once nothing runs or waits; fails if that takes too long."""
        until = time.monotonic() + seconds
        while self.open or (now := self.engine())["running"] or now["waiting"] or now["state_bytes"]:
            assert time.monotonic() < until, (self.open, self.engine())
            time.sleep(0.02)


@contextmanager
def running(
    folder: Path | str,
    load: Callable[[str], LM] | None = None,
    *,
    dtype: Any = "int8",
    send_buffer: int | None = None,
    **settings: Any,
) -> Iterator[RunningServer]:
    """Serve a model, as a rule one that `write_folder` made; stopped, and checked for leftovers, afterwards.

    `send_buffer`: bytes that the system takes from the server before the client reads them.
    """
    adapter = folder / "adapter.safetensors" if isinstance(folder, Path) else "auto"
    lm = trifolium.load(folder, adapter=adapter, dtype=dtype, progress=False)
    parsed = ServeSettings.parse(settings, "settings")
    app = create_app(lm, parsed, load)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=30,
        lifespan="on",
        http="h11",
        loop="asyncio",
    )
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server ended while it started"
            time.sleep(0.01)
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with httpx.Client(base_url=url, timeout=60) as client:
                yield RunningServer(url, lm, parsed, app, client)
        finally:
            server.should_exit = True
            thread.join(30)
    assert not thread.is_alive()
    assert not any(worker.alive for worker in app.state.service.models.loaded.values())


def raw_post(server: RunningServer, body: Any, path: str = "/v1/chat/completions") -> socket.socket:
    """A connection on which a request was sent, and nothing read yet."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\nConnection: close\r\n"
    connection = socket.socket()
    connection.settimeout(60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what isn't read stays with the server
    connection.connect(("127.0.0.1", server.port))
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def event_of(line: str) -> dict[str, Any] | None:
    """The JSON object of a stream's line; None for blank lines and [DONE]."""
    if not line or line == "data: [DONE]":
        return None
    assert line.startswith("data: "), line
    event: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return event


def events_of(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a whole stream; fails if it doesn't end with [DONE]."""
    last = ""
    for line in lines:
        if line:
            assert last != "data: [DONE]", "something follows [DONE]"
            last = line
            if (event := event_of(line)) is not None:
                yield event
    assert last == "data: [DONE]", "the stream ended without [DONE]"
