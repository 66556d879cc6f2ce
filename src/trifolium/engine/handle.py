"""What a caller holds of a request in the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..errors import UsageError
from .events import Event, Result
from .request import Live


class Handle:
    """A caller's hold on a request: poll `events` between steps, `cancel` it, take its `result` once `done`."""

    def __init__(self, live: Live, drop: Callable[[int], None]) -> None:
        self._live = live
        self._drop = drop

    @property
    def id(self) -> int:
        """Counts requests from 0, in order of arrival."""
        return self._live.id

    @property
    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self._live.result is not None or self._live.error is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """What will be done otherwise than asked."""
        return self._live.notes

    @property
    def error(self) -> Exception | None:
        """What made the request fail."""
        return self._live.error

    def events(self) -> Iterator[Event]:
        """Takes the events that came since the last call."""
        while self._live.events:
            yield self._live.events.popleft()

    def cancel(self) -> None:
        """End the request now and free what it holds; its result is what it has so far."""
        if not self._live.done:
            self._live.finish_reason = "cancelled"
            self._live.report()
            self._drop(self._live.id)

    @property
    def result(self) -> Result:
        """The finished answer. Raises what made the request fail, or UsageError while it runs."""
        if self._live.error is not None:
            raise self._live.error
        if self._live.result is None:
            raise UsageError("the request is still running: call step() until the handle is done")
        return self._live.result
