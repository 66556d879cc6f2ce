"""POST /v1/chat/completions, as OpenAI's clients speak it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from ..config import MAX_LOGPROBS
from ..engine import CanvasEvent, Result, TextEvent, TokenLogprob
from ..text import Tokenizer
from ..tools import MAX_TOOLS, Said, ToolCall, TurnReader
from .calls import call_id, described, pieces, use_of
from .conversation import ChatMessage, for_template, template_variables
from .errors import ApiError, Unsupported
from .fields import MOST_KEYS, MOST_PARTS, SampledBody, Several, StreamOptions, Wish, at_most, refuse, shown
from .service import Service, finished, service_of
from .shapes import ERRORS, ChatCompletion, answers
from .streaming import canvas_of, sse, stream
from .structure import of_format
from .usage import chat_usage
from .worker import Answer, Worker

router = APIRouter(responses=ERRORS)

NOT_YET = {
    "functions": "tools have taken their place",
    "function_call": "tool_choice has taken its place",
    "audio": "the model writes text",
    "web_search_options": "the server searches nothing",
}


class ChatBody(SampledBody):
    """A request. What stands after the second comment is accepted and changes nothing."""

    model_config = shown(
        {"messages": [{"role": "user", "content": "Name the capital of France."}], "max_completion_tokens": 20},
        {
            "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "trifolium": {"mode": "verified", "drafts": True},
        },
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
            "n": 2,
            "seed": 7,
            "logprobs": True,
            "top_logprobs": 3,
            "temperature": 0.7,
            "max_tokens": 9,
        },
    )

    messages: Annotated[Several[ChatMessage], Field(min_length=1, max_length=MOST_PARTS)]
    stream_options: StreamOptions | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    chat_template_kwargs: Annotated[dict[str, Any], at_most(MOST_KEYS)] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    modalities: Several[str] | None = None
    response_format: dict[str, Any] | None = None
    tools: Annotated[Several[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    # Refused by name (NOT_YET).
    functions: list[Any] | None = None
    function_call: Any = None
    audio: Any = None
    web_search_options: Any = None
    # Ignored.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    prediction: Any = None
    verbosity: Any = None

    def checked_wish(self) -> Wish:
        """How the answers are wanted. Raises Unsupported or ApiError for what can't be done."""
        refuse(self, NOT_YET)
        if self.modalities not in (None, ["text"]):
            raise Unsupported("modalities", "the model writes text")
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "'top_logprobs' needs 'logprobs': true", param="top_logprobs")
        limits = [limit for limit in (self.max_completion_tokens, self.max_tokens) if limit is not None]
        return self.wish(
            max_tokens=min(limits, default=None),
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            constraint=of_format(self.response_format, "response_format"),
            constrained_by="response_format",
        )


@router.post("/v1/chat/completions", response_model=None, responses=answers(ChatCompletion))
async def complete_chat(request: Request, body: ChatBody) -> Response:
    """Answer a conversation, at once or as a stream of chunks."""
    service = service_of(request)
    wish = body.checked_wish()
    worker = await service.models.get(body.model)
    messages = for_template(body.messages)
    use = use_of(body.tools, body.tool_choice, body.parallel_tool_calls)
    variables = template_variables(body.chat_template_kwargs, body.reasoning_effort, wish.constraint is not None)
    prompt = await service.encode(worker, messages, tools=described(use), template=variables)
    running = await service.start(worker, prompt, await service.with_tools(worker, prompt, wish, use))
    readers = [worker.lm.reader(prompt, use) for _ in running]
    chat = ChatAnswers(f"chatcmpl-{request.state.request_id}", worker, body.logprobs or False, readers)
    note = partial(service.note, "chat", messages)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return stream(chat.chunks(service, running, note, drafts=wish.options.drafts, usage=usage), request, running)
    results = await service.finish(request, running)
    note(results)
    return JSONResponse(chat.whole(results))


class ChatAnswers:
    """The answers of one request, in the API's words."""

    def __init__(self, id: str, worker: Worker, logprobs: bool, readers: Sequence[TurnReader]) -> None:
        self._id = id
        self._created = int(time.time())
        self._model = worker.lm.name
        self._tokenizer = worker.lm.tokenizer
        self._logprobs = logprobs
        self._thinks = worker.lm.thinks
        self._readers = readers
        self._messages = [_Message() for _ in readers]

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The response to a request without `stream`."""
        choices = self._choices(results)
        return {**self._head("chat.completion"), "choices": choices, "usage": self._usage(results)}

    async def chunks(
        self,
        service: Service,
        answers: Sequence[Answer],
        note: Callable[[Sequence[Result]], None],
        *,
        drafts: bool,
        usage: bool,
    ) -> AsyncIterator[bytes]:
        """The response to a request with `stream`; `note` is told how it ended."""
        results: dict[int, Result] = {}
        for index in range(len(answers)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for index, event in service.events(answers):
            if isinstance(event, TextEvent):
                deltas = list(self._deltas(index, self._readers[index].push(event.text)))
                for delta in deltas or ([{}] if event.logprobs else []):
                    yield self._chunk(index, delta, event.logprobs if delta is (deltas or [delta])[0] else None)
            elif isinstance(event, CanvasEvent) and drafts:
                # No choices, as in the chunk that brings the usage: clients pass over what they don't know.
                canvas = canvas_of(event, self._id, index).model_dump()
                yield sse({**self._head("chat.completion.chunk"), "choices": [], "trifolium": canvas})
            elif (result := finished(event)) is not None:
                results[index] = result
                for delta in self._deltas(index, self._readers[index].finish()):
                    yield self._chunk(index, delta)
                yield self._chunk(index, {}, reason=self._readers[index].reason(result))
        ordered = [results[i] for i in sorted(results)]
        note(ordered)
        if usage:
            yield sse({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage(ordered)})
        yield sse("[DONE]")

    def _choices(self, results: Sequence[Result]) -> list[dict[str, Any]]:
        choices = []
        for index, result in enumerate(results):
            reader, said = self._readers[index], self._messages[index]
            for part in (*reader.push(result.text), *reader.finish()):
                said.add(part)
            content = None if said.calls and not said.content else said.content
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if self._thinks:
                message["reasoning_content"] = said.reasoning
            if said.calls:
                message["tool_calls"] = said.calls
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs_of(result.logprobs),
                    "finish_reason": reader.reason(result),
                }
            )
        return choices

    def _deltas(self, index: int, parts: Iterable[Said | ToolCall]) -> Iterator[dict[str, Any]]:
        """What is new in a message; a call comes as its head, and its arguments piece by piece."""
        said = self._messages[index]
        for part in parts:
            new = said.add(part)
            if isinstance(part, ToolCall):
                place = len(said.calls) - 1
                head = {**said.calls[-1], "function": {"name": part.name, "arguments": ""}}
                yield {"tool_calls": [{"index": place, **head}]}
                for piece in pieces(part.arguments):
                    yield {"tool_calls": [{"index": place, "function": {"arguments": piece}}]}
            else:
                yield {"reasoning_content" if part.kind == "reasoning" else "content": new}

    def _usage(self, results: Sequence[Result]) -> dict[str, Any]:
        """Reasoning is counted as the tokens that its text would be cut into."""
        thoughts = (len(self._tokenizer.encode(said.reasoning, special=False)) for said in self._messages)
        return chat_usage(results, sum(thoughts))

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: Sequence[TokenLogprob] | None = None,
        reason: str | None = None,
    ) -> bytes:
        told = self._logprobs_of(logprobs) if logprobs else None
        choice = {"index": index, "delta": delta, "logprobs": told, "finish_reason": reason}
        return sse({**self._head("chat.completion.chunk"), "choices": [choice]})

    def _logprobs_of(self, logprobs: Iterable[TokenLogprob] | None) -> dict[str, Any] | None:
        if logprobs is None or not self._logprobs:
            return None
        content = [
            {
                **token_of(self._tokenizer, one.token, one.logprob),
                "top_logprobs": [token_of(self._tokenizer, token, logprob) for token, logprob in one.top],
            }
            for one in logprobs
        ]
        return {"content": content, "refusal": None}


class _Message:
    """A message as it grows. `calls`: in the API's shape."""

    def __init__(self) -> None:
        self.reasoning = self.content = ""
        self.calls: list[dict[str, Any]] = []
        self._called = False  # whether the last part was a call

    def add(self, part: Said | ToolCall) -> str:
        """Add a part; returns its text. What is said after a call begins a new line."""
        called, self._called = self._called, isinstance(part, ToolCall)
        if isinstance(part, ToolCall):
            function = {"name": part.name, "arguments": part.arguments}
            self.calls.append({"id": call_id(), "type": "function", "function": function})
            return ""
        if part.kind == "reasoning":
            self.reasoning += part.text
            return part.text
        text = f"\n{part.text}" if called and self.content else part.text
        self.content += text
        return text


def token_of(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    """A token, its bytes (which may end within a character) and its log-probability; -9999 for none, as OpenAI does."""
    data = tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""
    return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(data)}
