"""The real application under a real HTTP server, on a free port of this machine."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
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

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def engine(self) -> dict[str, float]:
        """What /metrics says of the engine."""
        text = httpx.get(f"{self.url}/metrics", headers=self.key_header).text
        found = re.findall(r'trifolium_engine\{model="\w+",what="(\w+)"\} (\S+)', text)
        return {name: float(value) for name, value in found}

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
    folder: Path, load: Callable[[str], LM] | None = None, max_rows: int = 96, **settings: Any
) -> Iterator[RunningServer]:
    """Serve the model of a folder that `write_folder` made; stopped, and checked for leftovers, afterwards."""
    before = set(threading.enumerate())
    lm = trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype="int8", max_rows=max_rows)
    parsed = ServeSettings.parse(settings, "settings")
    app = create_app(lm, parsed, load)
    config = uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=5, timeout_keep_alive=30, lifespan="on"
    )
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server ended while it started"
            time.sleep(0.01)
        try:
            yield RunningServer(f"http://127.0.0.1:{listener.getsockname()[1]}", lm, parsed, app)
        finally:
            server.should_exit = True
            thread.join(30)
    assert not thread.is_alive()
    left = [t for t in set(threading.enumerate()) - before if "engine" in t.name]
    assert not left, f"threads are left: {left}"


def events_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream; fails if it doesn't end with [DONE]."""
    done = False
    for line in lines:
        if line.startswith("data: "):
            assert not done, "something follows [DONE]"
            if not (done := line == "data: [DONE]"):
                yield json.loads(line.removeprefix("data: "))
    assert done, "the stream ended without [DONE]"
