"""POST /v1/completions: plain text that goes on, as OpenAI's clients speak it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from ..engine import CanvasEvent, Result, TextEvent, TokenLogprob
from ..text import Tokenizer
from .chat import token_of
from .errors import Unsupported
from .fields import SampledBody, Several, StreamOptions, Wish, shown
from .infill import gap_prompt
from .service import Service, finished, service_of
from .shapes import ERRORS, TextCompletion, answers
from .streaming import canvas_of, sse, stream
from .usage import chat_usage
from .worker import Answer, Worker

router = APIRouter(responses=ERRORS)

Tokens = Annotated[Several[int], Field(min_length=1)]

DEFAULT_TOKENS = 16
"""Longest text unless `max_tokens` says otherwise, as in OpenAI's API."""


class CompletionBody(SampledBody):
    """A request. Every prompt of a list gets `n` texts. What stands after the second comment changes nothing."""

    model_config = shown(
        {"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0},
        {"prompt": ["One", "Two"], "logprobs": 2, "max_tokens": 4},
        {"prompt": [1, 2, 3], "echo": True, "stream": True, "max_tokens": 4},
    )

    prompt: (
        str | Tokens | Annotated[Several[str], Field(min_length=1)] | Annotated[Several[Tokens], Field(min_length=1)]
    )
    stream_options: StreamOptions | None = None
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool = False
    best_of: int | None = Field(None, ge=1)
    suffix: str | None = None
    # Ignored.
    user: Any = None

    def checked_wish(self) -> Wish:
        """How the texts are wanted. Raises Unsupported for what can't be done."""
        if self.best_of not in (None, self.n or 1):
            raise Unsupported("best_of", "ask for 'n' texts and choose among them")
        if self.echo and self.suffix:
            raise Unsupported("echo", "with a suffix the text has two sides")
        if self.echo and self.logprobs is not None:
            raise Unsupported("echo", "log-probabilities of prompts are not given")
        return self.wish(max_tokens=self.max_tokens or DEFAULT_TOKENS, logprobs=self.logprobs)

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or more prompts, each a text or token ids."""
        if isinstance(self.prompt, str) or isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)


@router.post("/v1/completions", response_model=None, responses=answers(TextCompletion))
async def complete(request: Request, body: CompletionBody) -> Response:
    """Go on with one or more texts, at once or as a stream of chunks."""
    service = service_of(request)
    wish = body.checked_wish()
    worker = await service.models.get(body.model)
    service.check_count(len(body.prompts), wish)  # before each is cut into tokens
    if body.suffix:
        prompts, wish = await _gaps(service, worker, body.prompts, body.suffix, wish)
    else:
        prompts = [await _tokens(service, worker, prompt) for prompt in body.prompts]
    echoes = [_echo(worker, prompt) if body.echo else "" for prompt in prompts for _ in range(wish.choices)]
    running = await service.start_all(worker, prompts, wish)
    texts = Completions(f"cmpl-{request.state.request_id}", worker, body.logprobs is not None, echoes)
    prompt_tokens = sum(map(len, prompts))
    note = partial(service.note, "completion", body.prompt)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return stream(
            texts.chunks(service, running, prompt_tokens, note, drafts=wish.options.drafts, usage=usage),
            request,
            running,
        )
    results = await service.finish(request, running)
    note(results)
    return JSONResponse(texts.whole(results, prompt_tokens))


async def _tokens(service: Service, worker: Worker, prompt: str | list[int]) -> list[int]:
    """Token ids of a prompt; special tokens in a text stay text."""
    if not isinstance(prompt, str):
        return prompt
    worker.lm.check_size(len(prompt))
    tokenizer = worker.lm.tokenizer
    return await service.off_loop(tokenizer.encode, prompt, special=False, add_bos=tokenizer.add_bos)


async def _gaps(
    service: Service, worker: Worker, prompts: Sequence[str | list[int]], suffix: str, wish: Wish
) -> tuple[list[list[int]], Wish]:
    """Prompts for what stands between each text and the suffix, and the wish with what ends it."""
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise Unsupported("suffix", "it needs prompts that are texts")
    worker.lm.check_size(max(map(len, texts)) + len(suffix))
    made = [await service.off_loop(gap_prompt, worker.lm, text, suffix) for text in texts]
    return [ids for ids, _ in made], replace(wish, stop=(*wish.stop, *made[0][1]))


def _echo(worker: Worker, prompt: Sequence[int]) -> str:
    return worker.lm.tokenizer.decode(prompt, skip_special=True)


class Completions:
    """The texts of one request, in the API's words. `echoes`: what stands before each text."""

    def __init__(self, id: str, worker: Worker, logprobs: bool, echoes: Sequence[str]) -> None:
        self._id = id
        self._head = {"id": id, "object": "text_completion", "created": int(time.time()), "model": worker.lm.name}
        self._tokenizer = worker.lm.tokenizer
        self._logprobs = logprobs
        self._echoes = echoes

    def whole(self, results: Sequence[Result], prompt_tokens: int) -> dict[str, Any]:
        """The response to a request without `stream`."""
        choices = [
            self._choice(i, echo + result.text, result.logprobs, 0, result.finish_reason)
            for i, (echo, result) in enumerate(zip(self._echoes, results, strict=True))
        ]
        return {**self._head, "choices": choices, "usage": _usage(results, prompt_tokens)}

    async def chunks(
        self,
        service: Service,
        answers: Sequence[Answer],
        prompt_tokens: int,
        note: Callable[[Sequence[Result]], None],
        *,
        drafts: bool,
        usage: bool,
    ) -> AsyncIterator[bytes]:
        """The response to a request with `stream`; `note` is told how it ended."""
        results: dict[int, Result] = {}
        offsets = [0] * len(answers)
        for index, echo in enumerate(self._echoes):
            if echo:
                yield sse({**self._head, "choices": [self._choice(index, echo, None, 0)]})
        async for index, event in service.events(answers):
            if isinstance(event, TextEvent):
                choice = self._choice(index, event.text, event.logprobs, offsets[index])
                offsets[index] += len(event.text)
                yield sse({**self._head, "choices": [choice]})
            elif isinstance(event, CanvasEvent) and drafts:
                canvas = canvas_of(event, self._id, index).model_dump()
                yield sse({**self._head, "choices": [], "trifolium": canvas})
            elif (result := finished(event)) is not None:
                results[index] = result
                yield sse({**self._head, "choices": [self._choice(index, "", None, 0, result.finish_reason)]})
        ordered = [results[i] for i in sorted(results)]
        note(ordered)
        if usage:
            yield sse({**self._head, "choices": [], "usage": _usage(ordered, prompt_tokens)})
        yield sse("[DONE]")

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: Sequence[TokenLogprob] | None,
        offset: int,
        reason: str | None = None,
    ) -> dict[str, Any]:
        told = _logprobs(self._tokenizer, logprobs, offset) if logprobs and self._logprobs else None
        return {"index": index, "text": text, "logprobs": told, "finish_reason": reason}


def _usage(results: Sequence[Result], prompt_tokens: int) -> dict[str, Any]:
    usage = chat_usage(results)
    return {**usage, "prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + usage["completion_tokens"]}


def _logprobs(tokenizer: Tokenizer, logprobs: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """Four lists of equal length; offsets count characters of the text."""
    tokens = [token_of(tokenizer, one.token, one.logprob) for one in logprobs]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token["token"])
    return {
        "tokens": [token["token"] for token in tokens],
        "token_logprobs": [token["logprob"] for token in tokens],
        "top_logprobs": [
            {told["token"]: told["logprob"] for told in (token_of(tokenizer, *top) for top in one.top)}
            for one in logprobs
        ],
        "text_offset": offsets,
    }
