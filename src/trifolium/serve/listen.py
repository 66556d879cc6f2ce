"""The HTTP server: where it listens, and how it stops."""

from __future__ import annotations

import asyncio
import math
import socket

import uvicorn
from fastapi import FastAPI

from ..errors import UsageError

BACKLOG = 2048
CLOSING = 5
"""Seconds that connections have to close once their answers were ended."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises UsageError if that can't be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server((str(address[0]), int(address[1])), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"can't listen on {host}, port {port}: {reason}; --host and --port name another") from None


class Server(uvicorn.Server):
    """Runs an application until a signal comes, then lets open answers end.

    It first takes no more connections. Answers that are still open `drain` seconds later are ended, and their readers
    told so. A second Ctrl-C waits for nobody.
    """

    def __init__(self, app: FastAPI, *, drain: float) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            http="h11",  # always the same parser and loop, whatever else is installed
            loop="asyncio",
            timeout_graceful_shutdown=math.ceil(drain) + CLOSING,
        )
        super().__init__(config)
        self._state = app.state
        self._drain = drain

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until a signal comes, which is raised again afterwards. No engine runs on, however it ends."""
        try:
            super().run(sockets)
        finally:
            if (service := getattr(self._state, "service", None)) is not None:
                service.models.abandon()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As the base class, with an end to the draining that clients understand."""
        timer = asyncio.get_running_loop().call_later(self._drain, self._state.service.models.end)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
