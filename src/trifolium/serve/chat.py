"""POST /v1/chat/completions, as OpenAI's clients speak it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from ..config import MAX_LOGPROBS
from ..engine import CanvasEvent, Result, TextEvent, TokenLogprob
from ..text import Tokenizer
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
    "tools": "tool calls are not there yet",
    "tool_choice": "tool calls are not there yet",
    "functions": "tool calls are not there yet",
    "function_call": "tool calls are not there yet",
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
    # Refused by name (NOT_YET).
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None
    audio: Any = None
    web_search_options: Any = None
    # Ignored.
    parallel_tool_calls: Any = None
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
    variables = template_variables(body.chat_template_kwargs, body.reasoning_effort, wish.constraint is not None)
    prompt = await service.encode(worker, messages, template=variables)
    running = await service.start(worker, prompt, wish)
    chat = ChatAnswers(f"chatcmpl-{request.state.request_id}", worker, body.logprobs or False, prompt, len(running))
    note = partial(service.note, "chat", messages)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return stream(chat.chunks(service, running, note, drafts=wish.options.drafts, usage=usage), request, running)
    results = await service.finish(request, running)
    note(results)
    return JSONResponse(chat.whole(results))


class ChatAnswers:
    """The answers of one request, in the API's words."""

    def __init__(self, id: str, worker: Worker, logprobs: bool, prompt: Sequence[int], count: int) -> None:
        self._id = id
        self._created = int(time.time())
        self._model = worker.lm.name
        self._tokenizer = worker.lm.tokenizer
        self._logprobs = logprobs
        self._thinks = worker.lm.thinks
        self._splitters = [worker.lm.splitter(prompt) for _ in range(count)]
        self._thoughts = [""] * count

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
                if (delta := _delta(*self._heard(index, self._splitters[index].push(event.text)))) or event.logprobs:
                    yield self._chunk(index, delta, event.logprobs)
            elif isinstance(event, CanvasEvent) and drafts:
                # No choices, as in the chunk that brings the usage: clients pass over what they don't know.
                canvas = canvas_of(event, self._id, index).model_dump()
                yield sse({**self._head("chat.completion.chunk"), "choices": [], "trifolium": canvas})
            elif (result := finished(event)) is not None:
                results[index] = result
                if delta := _delta(*self._heard(index, self._splitters[index].finish())):
                    yield self._chunk(index, delta)
                yield self._chunk(index, {}, reason=result.finish_reason)
        ordered = [results[i] for i in sorted(results)]
        note(ordered)
        if usage:
            yield sse({**self._head("chat.completion.chunk"), "choices": [], "usage": self._usage(ordered)})
        yield sse("[DONE]")

    def _choices(self, results: Sequence[Result]) -> list[dict[str, Any]]:
        choices = []
        for index, result in enumerate(results):
            reasoning, content = self._heard(index, self._splitters[index].split(result.text))
            message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
            if self._thinks:
                message["reasoning_content"] = reasoning
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs_of(result.logprobs),
                    "finish_reason": result.finish_reason,
                }
            )
        return choices

    def _heard(self, index: int, said: tuple[str, str]) -> tuple[str, str]:
        """(reasoning, content) of an answer, or of the next part of it; its reasoning is kept, to be counted."""
        self._thoughts[index] += said[0]
        return said

    def _usage(self, results: Sequence[Result]) -> dict[str, Any]:
        """Reasoning is counted as the tokens that its text would be cut into."""
        thoughts = (len(self._tokenizer.encode(thought, special=False)) for thought in self._thoughts)
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


def _delta(reasoning: str, content: str) -> dict[str, Any]:
    named = {"reasoning_content": reasoning, "content": content}
    return {name: text for name, text in named.items() if text}


def token_of(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    """A token, its bytes (which may end within a character) and its log-probability; -9999 for none, as OpenAI does."""
    data = tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""
    return {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, -9999.0), "bytes": list(data)}
