"""/v1/responses: create, retrieve, list input, cancel and delete, as OpenAI's clients speak it."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from ..config import MAX_LOGPROBS
from ..tools import MAX_TOOLS
from .calls import described, use_of
from .conversation import template_variables
from .errors import ApiError
from .fields import Body, Several, TrifoliumOptions, Wish, at_most, refuse
from .response_items import Item, as_items, messages_of
from .response_run import Event, Run
from .service import Service, service_of, until_gone
from .shapes import ERRORS, Deleted, InputItems, ResponseObject, answers
from .store import Stored
from .streaming import sse, stream
from .structure import of_format

router = APIRouter(prefix="/v1/responses", responses=ERRORS)

NOT_YET = {
    "max_tool_calls": "the server calls nothing itself: parallel_tool_calls false asks for one call",
    "prompt": "there are no stored prompts: send the text",
    "conversation": "there are no stored conversations: go on from a response with previous_response_id",
    "moderation": "the server judges nothing",
    "image": "the model writes text",
}
LOGPROBS = "message.output_text.logprobs"
PAGE = 100
"""Input items that are listed at once, at most."""


class Reasoning(Body):
    """Whether the model may think first, where its chat template knows how. Summaries are not made."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Any = None
    generate_summary: Any = None
    context: Any = None
    mode: Any = None


class TextConfig(Body):
    """The form of the text: plain, any JSON object, or what a schema describes."""

    format: dict[str, Any] | None = None
    verbosity: Any = None


class StreamOptions(Body):
    """Accepted; streams aren't padded."""

    include_obfuscation: bool | None = None


class ResponsesBody(Body):
    """A request. What stands after the second comment is accepted and changes nothing."""

    input: str | Annotated[Several[Item], Field(min_length=1)]
    model: str = "default"
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    include: Several[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: Annotated[dict[str, str], at_most(16)] | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    truncation: Literal["auto", "disabled"] | None = None
    tools: Annotated[Several[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    trifolium: TrifoliumOptions = TrifoliumOptions()
    # Refused by name (NOT_YET).
    max_tool_calls: int | None = None
    prompt: Any = None
    conversation: Any = None
    moderation: Any = None
    image: Any = None
    # Ignored.
    user: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prompt_cache_options: Any = None
    context_management: Any = None
    background_options: Any = None
    access_programs: Any = None

    def wish(self) -> Wish:
        """How the answer is wanted. Raises ApiError or Unsupported for what can't be done."""
        refuse(self, NOT_YET)
        if self.background and self.store is False:
            raise ApiError(400, "a background response has to be stored", param="background")
        sampling = {"temperature": 1.0 if self.temperature is None else self.temperature}
        if self.top_p is not None:
            sampling["top_p"] = self.top_p
        return Wish(
            constraint=of_format(self.format, "text.format"),
            constrained_by="text.format",
            sampling=sampling,
            max_tokens=self.max_output_tokens,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            options=self.trifolium,
        )

    @property
    def format(self) -> dict[str, Any] | None:
        """The format that was asked for."""
        return None if self.text is None else self.text.format

    @property
    def logprobs(self) -> bool:
        """Whether each token's log-probability is wanted."""
        return LOGPROBS in (self.include or ())

    def blank(self, id: str, model: str) -> dict[str, Any]:
        """The response before anything is said."""
        return {
            "id": id,
            "object": "response",
            "created_at": time.time(),
            "completed_at": None,
            "status": "queued",
            "background": bool(self.background),
            "error": None,
            "incomplete_details": None,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "metadata": self.metadata or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": self.reasoning.effort if self.reasoning else None, "summary": None},
            "service_tier": "default",
            "store": self.store is not False,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "text": {"format": self.format or {"type": "text"}},
            "tool_choice": self.tool_choice or "auto",
            "tools": self.tools or [],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": self.truncation or "disabled",
            "usage": None,
        }


@router.post("", response_model=None, responses=answers(ResponseObject))
async def create(request: Request, body: ResponsesBody) -> Response:
    """Answer, at once, as a stream of events, or in the background."""
    service = service_of(request)
    wish = body.wish()
    worker = await service.models.get(body.model)
    before: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        before = _finished(service, body.previous_response_id).conversation
    fresh = messages_of(body.input)
    if not before and not fresh:
        raise ApiError(400, "the input has no messages", param="input")
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    effort = body.reasoning.effort if body.reasoning else None
    use = use_of(body.tools, body.tool_choice, body.parallel_tool_calls)
    variables = template_variables(None, effort, wish.constraint is not None)
    prompt = await service.encode(worker, [*instructions, *before, *fresh], tools=described(use), template=variables)
    begun = await service.start(worker, prompt, await service.with_tools(worker, prompt, wish, use))
    # Not the request's id, which a client may choose: twice the same would take another response's place in the store.
    id = f"resp_{secrets.token_hex(16)}"
    stored = Stored(body.blank(id, worker.lm.name), as_items(body.input), [*before, *fresh])
    run = Run(stored, worker, worker.lm.reader(prompt, use), drafts=wish.options.drafts, logprobs=body.logprobs)
    if body.store is not False:
        service.responses.put(stored)
    events = run.events(service, begun)
    if body.background:
        stored.cancel = begun[0].cancel
        service.keep(stored.record(events))
        return stream(_told(stored.follow()), request) if body.stream else JSONResponse(stored.response)
    if body.stream:
        return stream(_told(events), request, begun)
    await until_gone(request, _consumed(events))
    if run.error is not None:
        raise run.error
    return JSONResponse(stored.response)


@router.get("/{id}", response_model=None, responses=answers(ResponseObject))
async def retrieve(
    request: Request,
    id: str,
    stream_: Annotated[bool, Query(alias="stream")] = False,
    starting_after: Annotated[int, Query(ge=-1)] = -1,
) -> Response:
    """A stored response as it stands; one that runs in the background can be followed as a stream."""
    stored = service_of(request).responses.get(id)
    if not stream_:
        return JSONResponse(stored.response)
    if not stored.response["background"]:
        raise ApiError(400, "only background responses can be followed", param="stream")
    return stream(_told(stored.follow(starting_after)), request)


@router.get("/{id}/input_items", response_model=None, responses={200: {"model": InputItems}})
async def input_items(
    request: Request,
    id: str,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 20,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """What a stored response was asked with, the latest item first unless `order` is asc."""
    items = list(service_of(request).responses.get(id).input)
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise ApiError(400, f"there is no item {after[:80]!r}", param="after")
    start = 0 if after is None else ids.index(after) + 1
    page = items[start : start + limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {"first_id": None, "last_id": None}
    return JSONResponse({"object": "list", "data": page, **ends, "has_more": start + limit < len(items)})


@router.post("/{id}/cancel", response_model=None, responses={200: {"model": ResponseObject}})
async def cancel(request: Request, id: str) -> Response:
    """End a background response; what it has said so far stays."""
    stored = service_of(request).responses.get(id)
    if not stored.response["background"]:
        raise ApiError(400, "only background responses can be cancelled: close the connection of others", param="id")
    stored.cancel()
    await stored.over.wait()
    return JSONResponse(stored.response)


@router.delete("/{id}", response_model=None, responses={200: {"model": Deleted}})
async def delete(request: Request, id: str) -> Response:
    """Forget a response."""
    service_of(request).responses.delete(id)
    return JSONResponse({"id": id, "object": "response", "deleted": True})


def _finished(service: Service, id: str) -> Stored:
    """The response to go on from. Raises ApiError if there is none, or if it has no answer yet."""
    stored = service.responses.get(id, "previous_response_id")
    if not stored.over.is_set():
        raise ApiError(400, "the previous response is still being made", param="previous_response_id")
    if not stored.answered:
        raise ApiError(400, "the previous response broke off: send its input again", param="previous_response_id")
    return stored


async def _told(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
    async with aclosing(events) as source:  # type: ignore[type-var]
        async for event in source:
            yield sse(event, event["type"])


async def _consumed(events: AsyncIterator[Event]) -> None:
    async with aclosing(events) as source:  # type: ignore[type-var]
        async for _ in source:
            pass
