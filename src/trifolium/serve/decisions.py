"""POST /v1/systemone and POST /v1/decisions: typed questions, each wire with its own words for answers and faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from ..decide import Decisions, Deliberation, Inquiry
from ..decide import openai_wire as decisions_wire
from ..decide import systemone as systemone_wire
from ..engine import ScoreRequest, Scores
from ..errors import UsageError
from .service import Service, service_of, until_gone
from .shapes import ERRORS, SYSTEMONE_ERRORS
from .worker import Worker

router = APIRouter()

Read = Callable[[Any], Inquiry]
Write = Callable[[Decisions, str], dict[str, Any]]
Fault = Callable[[UsageError], dict[str, Any]]

_OBJECT = {"type": "object"}


def _document(*required: str) -> dict[str, Any]:
    """What the OpenAPI document says of a body: the wires' own readers say the rest, and name each fault's place."""
    schema = {**_OBJECT, "required": list(required), "properties": {"model": {"type": "string"}}}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post(
    "/v1/systemone",
    response_model=None,
    responses={200: {"content": {"application/json": {"schema": _OBJECT}}}, **SYSTEMONE_ERRORS},
    openapi_extra=_document("state", "questions"),
)
async def systemone(request: Request) -> Response:
    """Answer typed questions about a state. Questions by name; groups of them under `trifolium.joint`."""
    return await _answer(request, systemone_wire.read, systemone_wire.write, systemone_wire.detail, 422)


@router.post(
    "/v1/decisions",
    response_model=None,
    responses={200: {"content": {"application/json": {"schema": _OBJECT}}}, **ERRORS},
    openapi_extra=_document("input", "questions"),
)
async def decisions(request: Request) -> Response:
    """Answer typed questions about an input, as OpenAI's client asks them: a list, answered in order."""
    return await _answer(request, decisions_wire.read, decisions_wire.write, decisions_wire.error, 400)


async def _answer(request: Request, read: Read, write: Write, fault: Fault, status: int) -> Response:
    service = service_of(request)
    text = await request.body()
    try:
        body = await service.off_loop(systemone_wire.parse, text)
        inquiry = await service.off_loop(read, body)
        model = body.get("model")
        worker = await service.models.get(model if isinstance(model, str) else "default")
        found = await until_gone(request, decide(service, worker, inquiry))
    except UsageError as error:
        return JSONResponse(fault(error), status)
    return JSONResponse(write(found, worker.lm.name))


async def decide(service: Service, worker: Worker, inquiry: Inquiry) -> Decisions:
    """Run an inquiry on a worker: its thread scores, other threads reckon. Raises what `LM.answer` does."""
    deliberation = await service.off_loop(worker.lm.deliberate, inquiry)
    scores: Sequence[Scores] | None = None
    while True:
        step = await service.off_loop(_step, deliberation, scores)
        if isinstance(step, Decisions):
            return step
        scores = await service.score(worker, step)


def _step(deliberation: Deliberation, scores: Sequence[Scores] | None) -> Sequence[ScoreRequest] | Decisions:
    """What to score next, or what came of it all."""
    try:
        return next(deliberation) if scores is None else deliberation.send(scores)
    except StopIteration as stopped:
        decided: Decisions = stopped.value
        return decided
