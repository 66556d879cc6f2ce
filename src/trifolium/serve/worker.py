"""A model on a thread of its own, and answers that arrive on the event loop.

The engine belongs to one thread. Everything else reaches it as commands between two passes, so cancelling takes effect
within one pass, and an event loop never waits for the model.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from ..api import LM
from ..engine import (
    CanvasEvent,
    Event,
    FinishedEvent,
    Handle,
    Request,
    Result,
    ScoreHandle,
    ScoreRequest,
    Stats,
    TextEvent,
)
from .errors import ApiError, Overloaded
from .log import NAME

log = logging.getLogger(NAME)

Command = Callable[[], None]
News = tuple["Answer", Sequence[Event], Exception | None]

FIRST_GUESS = 5.0
"""Seconds that an answer takes, until some have ended."""


class Answer:
    """One request's events, as an async iterator that ends after its FinishedEvent; raises what made it fail.

    A slow reader loses no text: pieces that wait are joined, and of canvases only the latest is kept, which stands
    after all text that came before it. To leave the iterator is to cancel the request.
    """

    def __init__(self, cancel: Callable[[Answer], None]) -> None:
        self.handle: Handle | None = None
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over = False
        self._cancel = cancel
        self._text: TextEvent | None = None
        self._canvas: CanvasEvent | None = None
        self._end: FinishedEvent | None = None
        self._error: Exception | None = None
        self._news = asyncio.Event()

    @property
    def notes(self) -> tuple[str, ...]:
        """What will be done otherwise than asked."""
        return self.handle.notes if self.handle is not None else ()

    def cancel(self) -> None:
        """End the request within the current pass, if it still runs."""
        if not self.over:
            self._cancel(self)

    async def result(self) -> Result:
        """The finished answer; of one that was cancelled, what it had so far."""
        async with aclosing(self.__aiter__()) as events:
            async for event in events:
                if isinstance(event, FinishedEvent):
                    return event.result
        raise stopping()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                error, waiting = self._error, (self._text, self._canvas, self._end)
                self._text = self._canvas = self._end = None
                for event in waiting:
                    if event is not None:
                        yield event
                if error is not None:
                    raise error
                if isinstance(waiting[-1], FinishedEvent):
                    return
        finally:
            self.cancel()

    def take(self, events: Sequence[Event], error: Exception | None) -> None:
        """News of the engine, on the event loop: what one pass brought, its canvas before its text."""
        if any(isinstance(event, TextEvent) for event in events):
            self._canvas = None  # it stood before this text
        for event in events:
            if isinstance(event, CanvasEvent):
                self._canvas = event
            elif isinstance(event, FinishedEvent):
                self._canvas, self._end = None, event
            elif (old := self._text) is None:
                self._text = event
            else:
                tokens, logprobs = old.token_ids + event.token_ids, old.logprobs + event.logprobs
                self._text = TextEvent(old.text + event.text, tokens, logprobs)
        self._error = error
        self._news.set()


def stopping() -> ApiError:
    """What is told to requests that come, or are still open, when a server or a model has to end."""
    return ApiError(503, "the server is shutting down", code="shutting_down")


class Worker:
    """Runs one model's engine. `limit`: requests that may run or wait at once. Use it from one event loop."""

    def __init__(self, lm: LM, limit: int) -> None:
        self.lm = lm
        self.on_finished: Callable[[Result], None] = lambda result: None
        """Told of every answer that came to an end, on the event loop."""
        self._limit = limit
        self._open: set[Answer] = set()
        self._seconds = FIRST_GUESS
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._running: list[tuple[Handle, Answer]] = []  # the thread's own, as the engine is
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=f"engine of {lm.name}", daemon=True)
        self._thread.start()

    @property
    def open(self) -> int:
        """Requests that run or wait."""
        return len(self._open)

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive()

    async def submit(self, requests: Sequence[Request | ScoreRequest]) -> list[Answer]:
        """Queue requests, all or none. Raises Overloaded, PromptError or UsageError."""
        if self._closing:
            raise stopping()
        if len(requests) > self._limit:
            raise ApiError(400, f"{len(requests)} answers at once: the server has room for {self._limit}")
        if self.open + len(requests) > self._limit:
            raise Overloaded(self._until_room())
        answers = [Answer(self._ask_to_drop) for _ in requests]
        self._open.update(answers)
        for request, answer in zip(requests, answers, strict=True):
            self._commands.put(lambda request=request, answer=answer: self._add(request, answer))  # type: ignore[misc]
        try:
            await asyncio.gather(*(answer.accepted for answer in answers))
        except BaseException:
            for answer in answers:
                answer.cancel()
                answer.accepted.cancel()
            raise
        return answers

    async def stats(self) -> Stats:
        """What the engine is doing. Raises ApiError while it ends."""
        if self._closing:
            raise stopping()
        asked: asyncio.Future[Stats] = self._loop.create_future()

        def look() -> None:
            stats = self.lm.engine.stats()
            self._tell(lambda: None if asked.done() else asked.set_result(stats))

        self._commands.put(look)
        return await asked

    async def close(self) -> None:
        """End what still runs, whose readers are told so, and the thread."""
        self.end()
        self._commands.put(lambda: None)
        await asyncio.to_thread(self._thread.join)

    def end(self) -> None:
        """Take no more requests, and end what still runs within the current pass."""
        self._closing = True
        for answer in list(self._open):
            self._ask_to_drop(answer)
            self._settle([(answer, (), stopping())])

    def abandon(self) -> None:
        """As `close`, after the event loop has gone: nobody is told."""
        self._closing = True
        for answer in self._open:
            self._ask_to_drop(answer)
        self._commands.put(lambda: None)
        self._thread.join()

    def _until_room(self) -> int:
        """Seconds until one of the open requests has probably ended."""
        return max(1, math.ceil(self._seconds / 2))

    def _ask_to_drop(self, answer: Answer) -> None:
        self._commands.put(lambda: self._drop(answer))

    def _settle(self, news: Sequence[News]) -> None:
        """Give out what passes brought, on the event loop."""
        for answer, events, error in news:
            for event in events:
                if isinstance(event, FinishedEvent) and not isinstance(answer.handle, ScoreHandle):
                    self._count(event.result)
            if answer.over:  # it was ended from here, and its reader told
                continue
            if error is not None and not answer.accepted.done():
                answer.accepted.set_exception(error)
            elif not answer.accepted.done():
                answer.accepted.set_result(None)
            answer.take(events, error)
            if error is not None or any(isinstance(event, FinishedEvent) for event in events):
                answer.over = True
                self._open.discard(answer)

    def _count(self, result: Result) -> None:
        if result.finish_reason != "cancelled":
            self._seconds += 0.1 * (result.seconds + result.prompt_seconds - self._seconds)
        self.on_finished(result)

    # From here on: the engine's thread.

    def _run(self) -> None:
        while not (self._closing and not self._running and self._commands.empty()):
            try:
                self._obey()
                if self._running:
                    self.lm.engine.step()
                self._report()
            except Exception as error:
                self._give_up(error)

    def _obey(self) -> None:
        """Do what was asked since the last pass; wait for something to do if nothing runs."""
        if not self._running:
            self._commands.get()()
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            command()

    def _add(self, request: Request | ScoreRequest, answer: Answer) -> None:
        engine = self.lm.engine
        try:
            answer.handle = engine.score(request) if isinstance(request, ScoreRequest) else engine.add(request)
        except Exception as error:
            self._tell(lambda error=error: self._settle([(answer, (), error)]))  # type: ignore[misc]
            return
        self._running.append((answer.handle, answer))
        self._tell(lambda: self._settle([(answer, (), None)]))

    def _drop(self, answer: Answer) -> None:
        if answer.handle is not None:
            answer.handle.cancel()
            self._report()

    def _report(self) -> None:
        """Hand over what the requests have to tell since the last time."""
        news: list[News] = []
        for handle, answer in self._running:
            events = [
                FinishedEvent(self.lm.named(event.result)) if isinstance(event, FinishedEvent) else event
                for event in handle.events()
            ]
            if events or handle.error is not None:
                news.append((answer, events, handle.error))
        self._running = [(handle, answer) for handle, answer in self._running if not handle.done]
        if news:
            self._tell(lambda: self._settle(news))

    def _give_up(self, error: Exception) -> None:
        """The engine failed as a whole, which is a bug: its requests end, the server goes on."""
        log.error("the engine failed", exc_info=error)
        running, self._running = self._running, []
        for handle, _ in running:
            try:
                handle.cancel()
            except Exception as another:
                log.error("a request can't be ended", exc_info=another)
        news: list[News] = [(answer, (), error) for _, answer in running]
        self._tell(lambda: self._settle(news))

    def _tell(self, command: Command) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(command)
