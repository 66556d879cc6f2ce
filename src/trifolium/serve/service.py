"""What all protocols of a server share: its settings, models, counters, and the way from a body to running answers."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from starlette import requests as http

from ..api import Prompt
from ..config import DecodeConfig, SamplingParams
from ..engine import Event, FinishedEvent, Request, Result
from .errors import ApiError
from .fields import Wish
from .metrics import Metrics
from .models import Models
from .settings import ServeSettings
from .worker import Answer, Worker

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("trifolium.serve")


class Service:
    """A running server's parts, handed to every protocol's router."""

    def __init__(self, settings: ServeSettings, models: Models, metrics: Metrics) -> None:
        self.settings = settings
        self.models = models
        self.metrics = metrics
        self._encoding = asyncio.Semaphore(2)  # long prompts take turns on threads; short ones aren't kept waiting long

    async def encode(self, worker: Worker, prompt: Prompt, **options: Any) -> list[int]:
        """Token ids of a prompt, as `LM.encode`; off the event loop, for prompts may be long."""
        return await self.off_loop(worker.lm.encode, prompt, **options)

    async def off_loop(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Do work on long texts on a thread, a few at a time."""
        async with self._encoding:
            return await asyncio.to_thread(work, *arguments, **options)

    async def start(self, worker: Worker, prompt: Sequence[int], wish: Wish) -> list[Answer]:
        """Begin `wish.choices` answers. Raises ApiError, PromptError or UsageError."""
        if wish.choices > self.settings.max_choices:
            raise ApiError(400, f"at most {self.settings.max_choices} choices are given", param="n")
        limits = [limit for limit in (wish.max_tokens, self.settings.max_tokens) if limit is not None]
        context = worker.lm.model.config.max_positions
        decode = DecodeConfig.parse(
            {
                **wish.options.decode(),
                "max_tokens": min(limits, default=context),
                "stop": wish.stop,
                "ignore_eos": wish.ignore_eos,
                "logprobs": wish.logprobs,
            },
            "request",
        )
        seed = secrets.randbits(63) if wish.seed is None else wish.seed
        requests = [
            Request(prompt, SamplingParams.parse({**wish.sampling, "seed": (seed + i) % 2**64}, "request"), decode)
            for i in range(wish.choices)
        ]
        return await worker.submit(requests)

    async def results(self, answers: Sequence[Answer]) -> list[Result]:
        """All answers, once they are finished. Cancels them all if one fails or takes too long."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                return list(await asyncio.gather(*(answer.result() for answer in answers)))
        finally:
            for answer in answers:
                answer.cancel()

    async def finish(self, request: http.Request, answers: Sequence[Answer]) -> list[Result]:
        """As `results`; a client that hangs up cancels its answers."""
        results = asyncio.ensure_future(self.results(answers))
        gone = asyncio.ensure_future(_disconnect(request))
        try:
            await asyncio.wait({results, gone}, return_when=asyncio.FIRST_COMPLETED)
            if results.done():
                return results.result()
            raise ApiError(499, "the client closed the connection")
        finally:
            gone.cancel()
            results.cancel()

    async def events(self, answers: Sequence[Answer]) -> AsyncIterator[tuple[int, Event]]:
        """(choice, event) of all answers as they come; ends when all are finished. Raises and cancels as `results`."""
        news: asyncio.Queue[tuple[int, Event | BaseException | None]] = asyncio.Queue(maxsize=1)

        async def forward(index: int, answer: Answer) -> None:
            try:
                async for event in answer:
                    await news.put((index, event))
            except Exception as error:
                await news.put((index, error))
            else:
                await news.put((index, None))

        tasks = [asyncio.create_task(forward(i, answer)) for i, answer in enumerate(answers)]
        left = len(tasks)
        try:
            async with asyncio.timeout(self.settings.timeout):
                while left:
                    index, event = await news.get()
                    if isinstance(event, BaseException):
                        raise event
                    if event is None:
                        left -= 1
                    else:
                        yield index, event
        finally:
            for task in tasks:
                task.cancel()
            for answer in answers:
                answer.cancel()

    def note(self, kind: str, prompt: object, answer: object) -> None:
        """Write a prompt or answer to the log, if the server was told to."""
        if self.settings.log_prompts:
            log.info("%s: %r -> %r", kind, prompt, answer)


async def _disconnect(request: http.Request) -> None:
    """Returns once the client is gone; the body has been read already."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def service_of(request: http.Request) -> Service:
    """The service that the application was started with."""
    service: Service = request.app.state.service
    return service


def finished(event: Event) -> Result | None:
    """The result that an event brings, if it is an answer's last one."""
    return event.result if isinstance(event, FinishedEvent) else None
