"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError

__all__ = ["StopMatcher"]


class StopMatcher:
    """Passes text on up to the earliest stop string, and holds back what may be the beginning of one.

    The earliest occurrence is the one that begins first; of those that begin at one place, the longest stop given wins
    if the text already shows it, as a search of the whole text would find it. Raises UsageError for an empty stop.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise UsageError("stop strings must be a list of non-empty strings")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self._stopped: str | None = None

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stopped
