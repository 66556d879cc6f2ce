"""Server-sent events, and what a stream tells of the unfinished canvas."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from fastapi import Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive, Scope, Send

from ..engine import CanvasEvent
from .errors import api_error_of
from .worker import Answer

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class CanvasCell(BaseModel):
    """One position. `masked` has no token yet; `proposed` may still change; `pinned` won't, and becomes text next."""

    model_config = ConfigDict(extra="forbid")

    state: Literal["masked", "proposed", "pinned"]
    token: int | None = Field(description="Token id; null where the position is masked.")
    text: str
    confidence: float = Field(ge=0, le=1, description="How likely the token is, as far as the draft knows.")


class Canvas(BaseModel):
    """The unfinished end of an answer after a pass: a part of a stream that is provisional, all of it.

    Text that is final comes in the API's ordinary events and never changes. Each canvas replaces the one before.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["canvas"] = "canvas"
    request_id: str
    index: int = Field(ge=0, description="Which of the request's answers.")
    block_start: int = Field(ge=0, description="Position of the first cell, counted from the prompt's beginning.")
    provisional: Literal[True] = True
    cells: list[CanvasCell]


def canvas_of(event: CanvasEvent, request_id: str, index: int) -> Canvas:
    """What a stream says of the engine's canvas."""
    texts = event.texts or ("",) * len(event.cells)
    cells = [
        CanvasCell(
            state="pinned" if cell.state == "accepted" else cell.state,
            token=cell.token,
            text=text,
            confidence=min(1.0, max(0.0, cell.confidence)),
        )
        for cell, text in zip(event.cells, texts, strict=True)
    ]
    return Canvas(request_id=request_id, index=index, block_start=event.start, cells=cells)


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return (f"event: {event}\n" if event else "").encode() + f"data: {text}\n\n".encode()


def stream(events: AsyncIterator[bytes], request: Request, answers: Sequence[Answer] = ()) -> StreamingResponse:
    """A response of server-sent events. What fails after it has begun is told as a last event, in the API's shape.

    `answers` are cancelled when the response is over, however it ends; even if the client left before it began.
    """

    async def guarded() -> AsyncIterator[bytes]:
        try:
            async with aclosing(events) as source:  # type: ignore[type-var]
                async for event in source:
                    yield event
        except Exception as error:
            path = request.url.path
            body = api_error_of(error).body(path, request.state.request_id)
            yield sse(body, "error" if path.startswith("/v1/messages") else None)

    return _EventStream(guarded(), answers)


class _EventStream(StreamingResponse):
    """Closes its events, and with them what waits for the engine, at once and not when they are collected."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], answers: Sequence[Answer]) -> None:
        super().__init__(events, headers=HEADERS)
        self._events = events
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with aclosing(self._events):  # type: ignore[type-var]
                await super().__call__(scope, receive, send)
        finally:
            for answer in self._answers:
                answer.cancel()
