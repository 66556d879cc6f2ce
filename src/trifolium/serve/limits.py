"""What every request passes before a route sees it: its id, its size, its key; and what is counted of it."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError, api_error_of
from .log import tell
from .metrics import Metrics
from .settings import ServeSettings

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
ID_HEADERS = ("x-request-id", "request-id")
"""Where OpenAI's and Anthropic's clients look for a request's id."""

_OPEN = ("/", "/health")
"""Paths that need no key; and everything of the page, which has no secrets."""


class Gate:
    """ASGI middleware: gives each request an id, refuses what is too large or has no key, counts and logs the rest."""

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _SANE_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                for name in ID_HEADERS:
                    MutableHeaders(scope=message)[name] = request_id
            await send(message)

        try:
            self._check(scope["path"], headers)
            await self._app(scope, self._bounded(receive), answer)
        except ApiError as error:
            if status:
                raise
            await _send_error(error, scope, answer)
        except Exception as error:
            if status:
                raise
            await _send_error(api_error_of(error), scope, answer)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", "other")
            self._metrics.request(path, status)
            seconds = round(time.perf_counter() - started, 4)
            tell("request", id=request_id, method=scope["method"], path=path, status=status, seconds=seconds)

    def _check(self, path: str, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if len(length) > 15 or not length.isdecimal() or int(length) > self._settings.max_body:
            raise self._too_large()
        if self._settings.hosts and _name_of(headers.get("host", "")) not in self._settings.hosts:
            raise ApiError(403, "the server is called by another name, or needs --api-key", code="wrong_host")
        key = self._settings.api_key
        if key is None or path in _OPEN or path.startswith("/page/"):
            return
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        sent = headers.get("x-api-key") or (bearer.strip() if scheme.lower() == "bearer" else "")
        # Headers were read as Latin-1, which keeps every byte.
        if not hmac.compare_digest(sent.encode("latin-1"), key.encode("utf-8", "replace")):
            raise ApiError(401, "a valid API key is needed: send 'Authorization: Bearer KEY'", code="invalid_api_key")

    def _bounded(self, receive: Receive) -> Receive:
        """Bodies without a declared length end at the limit, too, and no body may trickle in for ever."""
        size, until = 0, asyncio.get_running_loop().time() + self._settings.body_timeout
        complete = False

        async def bounded() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, "the request's body took too long", headers={"Connection": "close"}) from None
            complete = not message.get("more_body", False)
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                if size > self._settings.max_body:
                    raise self._too_large()
            return message

        return bounded

    def _too_large(self) -> ApiError:
        return ApiError(413, f"a request may have {self._settings.max_body:,} bytes", code="request_too_large")


def _name_of(host: str) -> str:
    """A Host header without its port; IPv6 addresses without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()


async def _send_error(error: ApiError, scope: Scope, send: Send) -> None:
    body = json.dumps(error.body(scope["path"], scope["state"]["request_id"])).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
