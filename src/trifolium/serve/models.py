"""The models of a server: the one it was started with, and others of the shelf if requests may ask for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ..api import LM
from ..checkpoint import Shelf
from ..engine import Result
from .errors import ApiError
from .settings import ServeSettings
from .worker import Worker

ALIASES = ("trifolium", "default")
"""Names that stand for the model that the server was started with."""


class Models:
    """Workers by model name. `load` makes a model of a shelf name; it may take long, and runs on a thread."""

    def __init__(self, default: LM, load: Callable[[str], LM], settings: ServeSettings) -> None:
        self.default = default.name
        self.created = int(time.time())
        self.on_finished: Callable[[Result], None] = lambda result: None
        self._settings = settings
        self._load = load
        self._loading = asyncio.Lock()
        self._workers = {default.name: self._start(default)}  # the least recently used first

    @property
    def loaded(self) -> dict[str, Worker]:
        """Running workers by name."""
        return dict(self._workers)

    @property
    def names(self) -> list[str]:
        """Every model that a request may name."""
        others = sorted(Shelf.default().entries) if self._settings.load_models else []
        return list(dict.fromkeys([self.default, *others]))

    async def get(self, name: str) -> Worker:
        """The worker of a model, which is loaded if that is allowed. Raises ApiError 404 for any other name.

        Only names of the shelf are looked up: no request can make the server open a path or ask a hub.
        """
        if name in ALIASES:
            name = self.default
        if name not in self.names:
            known = ", ".join(self.names)
            raise ApiError(
                404, f"there is no model {name[:200]!r} here; known: {known}", param="model", code="model_not_found"
            )
        if (worker := self._use(name)) is not None:  # without waiting for others to be loaded
            return worker
        async with self._loading:
            if (worker := self._use(name)) is None:
                await self._make_room()
                self._workers[name] = worker = self._start(await asyncio.to_thread(self._load, name))
        return worker

    def _use(self, name: str) -> Worker | None:
        if (worker := self._workers.pop(name, None)) is not None:
            self._workers[name] = worker
        return worker

    def end(self) -> None:
        """Take no more requests, and end those that run."""
        for worker in self._workers.values():
            worker.end()

    async def close(self) -> None:
        """End all workers."""
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))

    def abandon(self) -> None:
        """As `close`, after the event loop has gone."""
        for worker in self._workers.values():
            worker.abandon()

    async def _make_room(self) -> None:
        if len(self._workers) < self._settings.max_models:
            return
        idle = [name for name, worker in self._workers.items() if not worker.open and name != self.default]
        if not idle:
            raise ApiError(503, "no room for another model while the loaded ones are busy", code="model_unavailable")
        await self._workers.pop(idle[0]).close()

    def _start(self, lm: LM) -> Worker:
        worker = Worker(lm, self._settings.max_open)
        worker.on_finished = lambda result: self.on_finished(result)
        return worker
