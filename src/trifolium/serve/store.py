"""Responses that later requests may ask for, or go on from: a bounded number of them, in memory."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import ApiError


@dataclass
class Stored:
    """A response as it stands now. `input`: the items it was asked with, for `input_items`.

    `conversation`: every message that a response which goes on from this one is preceded by, this one's answer included
    once there is one (`answered`). `cancel` ends it, if it runs in the background; its `events` are kept then. `over`:
    it has ended.
    """

    response: dict[str, Any]
    input: Sequence[dict[str, Any]]
    conversation: list[dict[str, Any]]
    cancel: Callable[[], None] = lambda: None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    answered: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def record(self, events: AsyncIterator[dict[str, Any]]) -> None:
        """Keep events as they come, for those who follow."""
        async for event in events:
            self.events.append(event)
            async with self._news:
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    async def follow(self, after: int = -1) -> AsyncIterator[dict[str, Any]]:
        """Recorded events beyond number `after`, and those that come, until the response is over."""
        at = after + 1
        while True:
            while at < len(self.events):
                yield self.events[at]
                at += 1
            async with self._news:
                if at >= len(self.events):
                    if self.over.is_set():
                        return
                    await self._news.wait()


class Store:
    """At most `limit` responses; those that nobody asked for longest are forgotten first, running ones last of all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, Stored] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, stored: Stored) -> None:
        """Keep a response, and forget others if there are too many."""
        self._kept[stored.response["id"]] = stored
        for id in [id for id, kept in self._kept.items() if kept.over.is_set()]:
            if len(self._kept) <= self._limit:
                return
            del self._kept[id]

    def get(self, id: str, field: str | None = None) -> Stored:
        """A response by its id. Raises ApiError 404; `field` is the one that named it."""
        if id not in self._kept:
            raise ApiError(
                404,
                f"there is no response {id[:80]!r}: it was never stored (store: false), was deleted, or was forgotten "
                f"for newer ones (this server keeps {self._limit})",
                param=field,
                code="response_not_found",
            )
        self._kept.move_to_end(id)
        return self._kept[id]

    def delete(self, id: str) -> None:
        """Forget a response, and end it if it runs. Raises ApiError 404."""
        self.get(id).cancel()
        del self._kept[id]
