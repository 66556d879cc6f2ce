"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from ..constrain import Constraint
from ..engine import CanvasEvent, Result, TextEvent
from .conversation import TextPart, template_variables, text_of
from .errors import ApiError, Unsupported
from .fields import MOST_STOPS, Body, Several, Stop, TrifoliumOptions, Wish, refuse
from .service import Service, finished, service_of
from .shapes import ANTHROPIC_ERRORS, AnthropicMessage, TokenCount, answers
from .streaming import canvas_of, sse, stream
from .structure import of_format
from .usage import passes_of
from .worker import Answer, Worker

router = APIRouter(responses=ANTHROPIC_ERRORS)

NOT_YET = {
    "tools": "tool calls are not there yet",
    "tool_choice": "tool calls are not there yet",
    "mcp_servers": "the server calls nobody",
    "container": "the server runs nothing",
}


class Thinking(Body):
    """Whether the model may think first, where its chat template knows how. The budget is not enforced."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: Any = None


class OutputConfig(Body):
    """How much effort to make (none means no thinking), and the schema that the answer follows."""

    effort: Literal["none", "low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None
    task_budget: Any = None


class Block(BaseModel):
    """A block of a message's content; what isn't text or thinking is refused by its type."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    text: str | None = None
    thinking: str | None = None


class Turn(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["user", "assistant", "system"]
    content: str | Several[Block]


class CountBody(Body):
    """A conversation. What stands after the second comment is accepted and changes nothing."""

    messages: Annotated[Several[Turn], Field(min_length=1)]
    model: str = "default"
    system: str | Several[Block] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    # Refused by name (NOT_YET).
    tools: list[Any] | None = None
    tool_choice: Any = None
    mcp_servers: Any = None
    container: Any = None
    # Ignored.
    cache_control: Any = None
    context_management: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None

    def conversation(self) -> tuple[list[dict[str, Any]], str]:
        """Messages for the chat template, and the beginning of the answer, if the last message is the assistant's."""
        refuse(self, NOT_YET)
        messages = [
            {"role": turn.role, "content": _text(turn.content, f"messages.{i}.content")}
            for i, turn in enumerate(self.messages)
        ]
        if self.system:
            messages.insert(0, {"role": "system", "content": _text(self.system, "system")})
        if self.messages[-1].role != "assistant":
            return messages, ""
        begun = messages.pop()["content"]
        if not messages:
            raise ApiError(400, "the first message must be the user's", param="messages")
        if begun != begun.rstrip():
            raise ApiError(400, "the final assistant message must not end with white space", param="messages")
        return messages, begun

    def variables(self, constrained: bool) -> dict[str, Any]:
        """Further variables of the chat template; `constrained`: the answer follows a constraint."""
        if self.thinking is not None:
            return {"enable_thinking": self.thinking.type != "disabled"}
        effort = None if self.output_config is None else self.output_config.effort
        return template_variables(None, effort, constrained)

    def constraint(self) -> tuple[Constraint | None, str]:
        """What the answer must be, and the field that says so. Raises ApiError."""
        if self.output_config is not None and self.output_config.format is not None:
            return of_format(self.output_config.format, "output_config.format"), "output_config.format"
        return of_format(self.output_format, "output_format"), "output_format"


class MessagesBody(CountBody):
    """A request. A final message of the assistant's is the beginning of the answer."""

    max_tokens: int = Field(ge=1)
    stream: bool = False
    stop_sequences: Annotated[Several[Stop], Field(max_length=MOST_STOPS)] | None = None
    temperature: float = Field(1.0, ge=0, le=1)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    trifolium: TrifoliumOptions = TrifoliumOptions()
    # Ignored.
    metadata: Any = None
    service_tier: Any = None
    inference_geo: Any = None
    diagnostics: Any = None

    def wish(self) -> Wish:
        """How the answer is wanted."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        constraint, field = self.constraint()
        return Wish(
            constraint=constraint,
            constrained_by=field,
            sampling={name: value for name, value in given.items() if value is not None},
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences or ()),
            options=self.trifolium,
        )


@router.post("/v1/messages", response_model=None, responses=answers(AnthropicMessage))
async def create(request: Request, body: MessagesBody) -> Response:
    """Answer a conversation, at once or as a stream of events."""
    service = service_of(request)
    wish, worker = body.wish(), await service.models.get(body.model)
    messages, begun_with = body.conversation()
    variables = body.variables(wish.constraint is not None)
    prompt = await _prompt(service, worker, messages, begun_with, variables)
    begun = await service.start(worker, prompt, wish)
    message = Message(f"msg_{request.state.request_id}", worker, prompt)
    if body.stream:
        return stream(message.events(service, begun, drafts=body.trifolium.drafts), request, begun)
    results = await service.finish(request, begun)
    service.note("message", messages, results)
    return JSONResponse(message.whole(results[0]))


@router.post("/v1/messages/count_tokens", response_model=None, responses={200: {"model": TokenCount}})
async def count(request: Request, body: CountBody) -> dict[str, int]:
    """How many tokens a conversation has, as the model reads it."""
    service = service_of(request)
    worker = await service.models.get(body.model)
    constrained = body.constraint()[0] is not None
    return {"input_tokens": len(await _prompt(service, worker, *body.conversation(), body.variables(constrained)))}


async def _prompt(
    service: Service, worker: Worker, messages: list[dict[str, Any]], begun: str, variables: dict[str, Any]
) -> list[int]:
    """Token ids of messages and of the answer's beginning."""
    prompt = await service.encode(worker, messages, template=variables)
    if begun:
        worker.lm.check_size(len(begun))
        prompt += await service.off_loop(worker.lm.tokenizer.encode, begun, special=False)
    return prompt


def _text(content: str | Sequence[Block], field: str) -> str:
    """The text of a content. The assistant's earlier thoughts are left out, as templates do."""
    if isinstance(content, str):
        return content
    parts = [TextPart(type=block.type, text=block.text) for block in content if "thinking" not in block.type]
    if refused := next((part.type for part in parts if part.type in ("tool_use", "tool_result")), None):
        raise Unsupported(field, f"blocks of type {refused!r} belong to tool calls, which are not there yet")
    return text_of(parts, field)


class Message:
    """One answer, in the API's words."""

    def __init__(self, id: str, worker: Worker, prompt: Sequence[int]) -> None:
        self._id = id
        self._model = worker.lm.name
        self._prompt = len(prompt)
        self._splitter = worker.lm.splitter(prompt)

    def whole(self, result: Result) -> dict[str, Any]:
        """The response to a request without `stream`."""
        thinking, text = self._splitter.split(result.text)
        content: list[dict[str, Any]] = []
        if thinking:
            content.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if text:
            content.append({"type": "text", "text": text, "citations": None})
        return {**self._head(), "content": content, **_stop(result), "usage": _usage(result)}

    async def events(self, service: Service, answers: Sequence[Answer], *, drafts: bool) -> AsyncIterator[bytes]:
        """The response to a request with `stream`."""
        usage = {"input_tokens": self._prompt, "output_tokens": 0}
        start = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=start)
        yield _event("ping")
        blocks = Blocks()
        async for index, event in service.events(answers):
            if isinstance(event, TextEvent):
                for one in blocks.add(*self._splitter.push(event.text)):
                    yield one
            elif isinstance(event, CanvasEvent) and drafts:
                yield _event("trifolium_canvas", canvas=canvas_of(event, self._id, index).model_dump())
            elif (result := finished(event)) is not None:
                for one in (*blocks.add(*self._splitter.finish()), *blocks.end()):
                    yield one
                yield _event("message_delta", delta=_stop(result), usage=_usage(result))
        yield _event("message_stop")

    def _head(self) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model}


class Blocks:
    """Content blocks of a stream: thinking first, then text; each begins with its first piece."""

    def __init__(self) -> None:
        self._index = -1
        self._kind = ""

    def add(self, thinking: str, text: str) -> Iterator[bytes]:
        """Events for these pieces."""
        for kind, piece in (("thinking", thinking), ("text", text)):
            if piece:
                if kind != self._kind:
                    yield from self._begin(kind)
                delta = {"type": f"{kind}_delta", kind: piece}
                yield _event("content_block_delta", index=self._index, delta=delta)

    def end(self) -> Iterator[bytes]:
        """The last block is over."""
        if self._kind:
            yield _event("content_block_stop", index=self._index)

    def _begin(self, kind: str) -> Iterator[bytes]:
        yield from self.end()
        self._index, self._kind = self._index + 1, kind
        block = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {"citations": None})
        yield _event("content_block_start", index=self._index, content_block=block)


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _stop(result: Result) -> dict[str, Any]:
    if result.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": result.stop}
    reason = "max_tokens" if result.finish_reason == "length" else "end_turn"
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(result: Result) -> dict[str, Any]:
    """Tokens from the prefix cache count apart, as the API has it."""
    return {
        "input_tokens": result.prompt_tokens - result.cached_tokens,
        "cache_read_input_tokens": result.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": result.tokens,
        "trifolium": passes_of([result]),
    }
