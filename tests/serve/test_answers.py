"""What an Answer keeps for a reader who is slower than the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import trifolium
from trifolium.config import DecodeConfig
from trifolium.engine import CanvasEvent, Cell, Event, FinishedEvent, Request, TextEvent, TokenLogprob
from trifolium.errors import NumericalError, PromptError
from trifolium.serve.errors import ApiError, Overloaded
from trifolium.serve.worker import Answer, Worker


def canvas(start: int) -> CanvasEvent:
    return CanvasEvent(start, (Cell(None, "masked"),))


def text(letters: str, first: int) -> TextEvent:
    ids = tuple(range(first, first + len(letters)))
    return TextEvent(letters, ids, tuple(TokenLogprob(i, -0.5) for i in ids))


def read(*passes: Sequence[Event], error: Exception | None = None) -> list[Event]:
    """What a reader gets who comes after these passes."""

    async def go() -> list[Event]:
        cancelled: list[Answer] = []
        answer = Answer(cancelled.append)
        for news in passes:
            answer.take(news, None)
        if error is not None:
            answer.take((), error)
        events = []
        try:
            async with asyncio.timeout(0.05):
                async for event in answer:
                    events.append(event)
        except TimeoutError:
            pass
        assert cancelled == [answer], "a reader who leaves cancels"
        return events

    return asyncio.run(go())


def test_texts_are_joined_and_the_latest_canvas_stands_after_them():
    told = read([canvas(1), text("a", 0)], [canvas(3), text("bc", 1)], [canvas(4), text("d", 3)])
    assert told == [text("abcd", 0), canvas(4)]


def test_a_canvas_that_text_has_overtaken_is_gone():
    assert read([canvas(1), text("a", 0)], [text("b", 1)]) == [text("ab", 0)]
    assert read([canvas(1), text("a", 0)], [canvas(1)]) == [text("a", 0), canvas(1)]


def test_errors_come_after_what_was_told():
    with pytest.raises(NumericalError, match="NaN"):
        read([text("a", 0)], error=NumericalError("NaN"))


def test_a_worker_takes_all_or_none_and_ends(folder):
    """The real thing, without HTTP: limits, refusals, results, and what is open when it closes."""

    async def go() -> None:
        lm = trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype="int8")
        worker = Worker(lm, limit=3)
        short = Request(lm.encode("Hello"), decode=DecodeConfig(max_tokens=5))
        [answer] = await worker.submit([short])
        assert (await answer.result()).tokens <= 5 and worker.open == 0
        with pytest.raises(PromptError):
            await worker.submit([short, Request([])])
        async with asyncio.timeout(5):
            while worker.open:
                await asyncio.sleep(0.01)
        with pytest.raises(ApiError, match="room for 3"):
            await worker.submit([short] * 4)
        endless = Request(lm.encode("Hello"), decode=DecodeConfig(max_tokens=5000, ignore_eos=True))
        left, stays, third = await worker.submit([endless] * 3)
        with pytest.raises(Overloaded):
            await worker.submit([short])
        left.cancel()
        events = [event async for event in left]
        assert isinstance(events[-1], FinishedEvent) and events[-1].result.finish_reason == "cancelled"
        stats = await worker.stats()
        assert stats.running + stats.waiting == 2 == worker.open
        reading = asyncio.create_task(stays.result())
        await asyncio.sleep(0.05)
        third.cancel()
        await worker.close()
        with pytest.raises(ApiError, match="shutting down"):
            await reading
        assert worker.open == 0 and not worker.alive
        for call in (worker.stats(), worker.submit([short])):
            with pytest.raises(ApiError, match="shutting down"):
                await call
        assert lm.engine.stats().running == 0

    asyncio.run(go())
