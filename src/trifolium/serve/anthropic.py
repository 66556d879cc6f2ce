"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from ..constrain import Constraint
from ..engine import CanvasEvent, Result, TextEvent
from ..tools import MAX_TOOLS, Said, ToolCall, ToolUse, TurnReader
from .calls import call_id, described, pieces, use_of_anthropic
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
    "mcp_servers": "the server calls nobody",
    "container": "the server runs nothing",
}


class Thinking(Body):
    """Whether the model may think first, where its chat template knows how, and for how many tokens."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: Any = None


class OutputConfig(Body):
    """How much effort to make (none means no thinking), and the schema that the answer follows."""

    effort: Literal["none", "low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None
    task_budget: Any = None


class Block(BaseModel):
    """A block of a message's content; what isn't text, thinking, a call or its result is refused by its type."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    text: str | None = None
    thinking: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | Several[TextPart] | None = None
    is_error: bool | None = None


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
    tools: Annotated[Several[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: dict[str, Any] | None = None
    # Refused by name (NOT_YET).
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
        messages = [message for i, turn in enumerate(self.messages) for message in _messages(turn, f"messages.{i}")]
        if self.system:
            messages.insert(0, {"role": "system", "content": _text(self.system, "system")})
        if self.messages[-1].role != "assistant":
            return messages, ""
        last = messages.pop()
        begun = last["content"]
        if "tool_calls" in last:
            raise ApiError(400, "a call at the end waits for its result", param="messages")
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

    def use(self) -> ToolUse | None:
        """The tools that the answer may call. Raises ApiError."""
        return use_of_anthropic(self.tools, self.tool_choice)

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

    @property
    def options(self) -> TrifoliumOptions:
        """What only this server has, with the budget for thinking."""
        budget = None if self.thinking is None else self.thinking.budget_tokens
        if budget is None or self.trifolium.thinking_budget is not None:
            return self.trifolium
        return self.trifolium.model_copy(update={"thinking_budget": budget})

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
            options=self.options,
        )


@router.post("/v1/messages", response_model=None, responses=answers(AnthropicMessage))
async def create(request: Request, body: MessagesBody) -> Response:
    """Answer a conversation, at once or as a stream of events."""
    service = service_of(request)
    wish, worker = body.wish(), await service.models.get(body.model)
    messages, begun_with = body.conversation()
    use, variables = body.use(), body.variables(wish.constraint is not None)
    prompt = await _prompt(service, worker, messages, begun_with, use, variables)
    begun = await service.start(worker, prompt, await service.with_tools(worker, prompt, wish, use))
    message = Message(f"msg_{request.state.request_id}", worker.lm.name, len(prompt), worker.lm.reader(prompt, use))
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
    variables = body.variables(constrained)
    return {"input_tokens": len(await _prompt(service, worker, *body.conversation(), body.use(), variables))}


async def _prompt(
    service: Service,
    worker: Worker,
    messages: list[dict[str, Any]],
    begun: str,
    use: ToolUse | None,
    variables: dict[str, Any],
) -> list[int]:
    """Token ids of messages and of the answer's beginning."""
    prompt = await service.encode(worker, messages, tools=described(use), template=variables)
    if begun:
        worker.lm.check_size(len(begun))
        prompt += await service.off_loop(worker.lm.tokenizer.encode, begun, special=False)
    return prompt


def _text(content: str | Sequence[Block], field: str) -> str:
    """The text of a content. The assistant's earlier thoughts are left out, as templates do."""
    if isinstance(content, str):
        return content
    parts = [TextPart(type=block.type, text=block.text) for block in content if "thinking" not in block.type]
    return text_of(parts, field)


def _messages(turn: Turn, field: str) -> list[dict[str, Any]]:
    """A turn as messages in OpenAI's shape: results of tools first, each one of its own, then what is said."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    calls, results, rest = [], [], []
    for block in turn.content:
        if block.type == "tool_use" and turn.role == "assistant":
            calls.append({"type": "function", "function": {"name": block.name, "arguments": block.input or {}}})
        elif block.type == "tool_result" and turn.role == "user":
            parts = block.content if isinstance(block.content, str) else list(block.content or ())
            text = text_of(parts, f"{field}.content")
            results.append({"role": "tool", "content": f"Error: {text}" if block.is_error else text})
        elif block.type in ("tool_use", "tool_result"):
            raise Unsupported(f"{field}.content", f"blocks of type {block.type!r} don't belong to the {turn.role}")
        else:
            rest.append(block)
    said: dict[str, Any] = {"role": turn.role, "content": _text(rest, f"{field}.content")}
    if calls:
        said["tool_calls"] = calls
    return [*results, said] if rest or calls or not results else results


class Message:
    """One answer, in the API's words."""

    def __init__(self, id: str, model: str, prompt_tokens: int, reader: TurnReader) -> None:
        self._id = id
        self._model = model
        self._prompt = prompt_tokens
        self._reader = reader

    def whole(self, result: Result) -> dict[str, Any]:
        """The response to a request without `stream`."""
        content: list[dict[str, Any]] = []
        for part in (*self._reader.push(result.text), *self._reader.finish()):
            if isinstance(part, ToolCall):
                content.append({**_block(part), "input": part.values})
                continue
            kind = KINDS[part.kind]
            if not content or content[-1]["type"] != kind:
                content.append(_block(part))
            content[-1][kind] += part.text
        return {**self._head(), "content": content, **self._stop(result), "usage": _usage(result)}

    async def events(self, service: Service, answers: Sequence[Answer], *, drafts: bool) -> AsyncIterator[bytes]:
        """The response to a request with `stream`."""
        usage = {"input_tokens": self._prompt, "output_tokens": 0}
        start = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=start)
        yield _event("ping")
        blocks = Blocks()
        async for index, event in service.events(answers):
            if isinstance(event, TextEvent):
                for one in blocks.add(self._reader.push(event.text)):
                    yield one
            elif isinstance(event, CanvasEvent) and drafts:
                yield _event("trifolium_canvas", canvas=canvas_of(event, self._id, index).model_dump())
            elif (result := finished(event)) is not None:
                for one in (*blocks.add(self._reader.finish()), *blocks.end()):
                    yield one
                yield _event("message_delta", delta=self._stop(result), usage=_usage(result))
        yield _event("message_stop")

    def _head(self) -> dict[str, Any]:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._model}

    def _stop(self, result: Result) -> dict[str, Any]:
        if result.stop is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": result.stop}
        reasons = {"length": "max_tokens", "tool_calls": "tool_use", "repetition": "repetition"}
        reason = reasons.get(self._reader.reason(result), "end_turn")
        return {"stop_reason": reason, "stop_sequence": None}


KINDS = {"reasoning": "thinking", "content": "text"}


def _block(part: Said | ToolCall) -> dict[str, Any]:
    """A content block before anything is in it."""
    if isinstance(part, ToolCall):
        return {"type": "tool_use", "id": call_id("toolu"), "name": part.name, "input": {}}
    kind = KINDS[part.kind]
    return {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {"citations": None})


class Blocks:
    """Content blocks of a stream, each begun with its first piece."""

    def __init__(self) -> None:
        self._index = -1
        self._kind = ""

    def add(self, parts: Iterable[Said | ToolCall]) -> Iterator[bytes]:
        """Events for these parts of the turn."""
        for part in parts:
            if isinstance(part, ToolCall):
                yield from self._begin("tool_use", part)
                for piece in pieces(part.arguments):
                    yield self._delta({"type": "input_json_delta", "partial_json": piece})
                continue
            kind = KINDS[part.kind]
            if kind != self._kind:
                yield from self._begin(kind, part)
            yield self._delta({"type": f"{kind}_delta", kind: part.text})

    def end(self) -> Iterator[bytes]:
        """The last block is over."""
        if self._kind:
            yield _event("content_block_stop", index=self._index)

    def _begin(self, kind: str, part: Said | ToolCall) -> Iterator[bytes]:
        yield from self.end()
        self._index, self._kind = self._index + 1, kind
        yield _event("content_block_start", index=self._index, content_block=_block(part))

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _usage(result: Result) -> dict[str, Any]:
    """Tokens from the prefix cache count apart, as the API has it."""
    return {
        "input_tokens": result.prompt_tokens - result.cached_tokens,
        "cache_read_input_tokens": result.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": result.tokens,
        "trifolium": passes_of([result]),
    }
