"""What all protocols of a server share: its settings, models, counters, and the way from a body to running answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from starlette import requests as http

from ..api import Prompt
from ..config import REPEATS, DecodeConfig, SamplingParams
from ..decide.deliberate import AT_ONCE
from ..engine import Event, FinishedEvent, Request, Result, ScoreHandle, ScoreRequest, Scores
from ..tools import ToolUse
from .errors import ApiError
from .fields import Wish
from .log import tell
from .metrics import Metrics
from .models import Models
from .settings import ServeSettings
from .store import Store
from .structure import made
from .worker import Answer, Worker

P = ParamSpec("P")
T = TypeVar("T")


class Service:
    """A running server's parts, handed to every protocol's router."""

    def __init__(self, settings: ServeSettings, models: Models, metrics: Metrics, replica: str | None = None) -> None:
        self.replica = replica
        self.settings = settings
        self.models = models
        self.metrics = metrics
        self.responses = Store(settings.max_stored)
        self.loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
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
        return await self.start_all(worker, [prompt], wish)

    async def start_all(self, worker: Worker, prompts: Sequence[Sequence[int]], wish: Wish) -> list[Answer]:
        """Begin `wish.choices` answers to each prompt, all or none. Raises ApiError, PromptError or UsageError."""
        self.check_count(len(prompts), wish)
        await self._check_constraint(worker, prompts, wish)
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
        thinks = any(worker.lm.is_thinking(prompt) for prompt in prompts)
        if wish.options.repeats is None and (wish.thoughtful or thinks):
            decode = decode.model_copy(update={"repeats": REPEATS})
        seed = secrets.randbits(63) if wish.seed is None else wish.seed
        sampling = [
            SamplingParams.parse({**wish.sampling, "seed": (seed + i) % 2**64}, "request") for i in range(wish.choices)
        ]
        return await worker.submit(
            [
                Request(prompt, choice, decode, wish.constraint, worker.lm.is_thinking(prompt))
                for prompt in prompts
                for choice in sampling
            ]
        )

    async def _check_constraint(self, worker: Worker, prompts: Sequence[Sequence[int]], wish: Wish) -> None:
        """Compile a constraint off the engine's thread, where it would hold up everyone. Raises ApiError."""
        if wish.constraint is None:
            return
        field = wish.constrained_by
        if not wish.thoughtful and any(worker.lm.is_thinking(prompt) for prompt in prompts):
            raise ApiError(400, "a constrained answer can't begin with thoughts: leave thinking off", param=field)
        compiler = worker.lm.engine.compiler
        await self.off_loop(made, compiler.guide, wish.constraint, field)

    async def with_tools(self, worker: Worker, prompt: Sequence[int], wish: Wish, use: ToolUse | None) -> Wish:
        """The wish for an answer that may call tools, which the prompt has told of. Raises ToolError."""
        if use is None:
            return wish
        constraint = await self.off_loop(worker.lm.constraint, prompt, use, wish.constraint)
        return replace(wish, constraint=constraint, constrained_by="tools", thoughtful=True)

    def check_count(self, prompts: int, wish: Wish) -> None:
        """Raises ApiError for more answers than a request may ask for."""
        if prompts * wish.choices > self.settings.max_choices:
            param = "n" if prompts == 1 else "prompt"
            raise ApiError(400, f"at most {self.settings.max_choices} answers are given at once", param=param)

    async def score(self, worker: Worker, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Scores of all requests, a few at a time: each holds a copy of its state. Raises and cancels as `results`."""
        found: list[Scores] = []
        for start in range(0, len(requests), AT_ONCE):
            answers = await worker.submit(requests[start : start + AT_ONCE])
            await self.results(answers)
            found += [answer.handle.scores for answer in answers if isinstance(answer.handle, ScoreHandle)]
        return found

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
        return await until_gone(request, self.results(answers))

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that outlives its request, until the server stops."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End what outlives requests."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

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
        until = asyncio.get_running_loop().time() + self.settings.timeout
        try:
            while left:
                async with asyncio.timeout_at(until):  # not around the yield, where the time is the reader's
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

    def note(self, kind: str, prompt: object, results: Sequence[Result]) -> None:
        """Write a prompt and its answers to the log, if the server was told to."""
        if self.settings.log_prompts:
            tell(kind, prompt=prompt, answers=[result.text for result in results])


async def until_gone(request: http.Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` brings. Raises ApiError, and cancels it, if the client hangs up before."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(499, "the client closed the connection")
    finally:
        gone.cancel()
        task.cancel()


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
