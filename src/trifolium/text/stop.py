"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UsageError

__all__ = ["StopMatcher"]


class StopMatcher:
    """Passes text on until a stop string is complete, and holds back what may be the beginning of one.

    The earliest occurrence is the one that is complete first (of those that end together, the longest): where someone
    who reads one character at a time would stop. So the result doesn't depend on how the text was cut into pieces, and
    no text has to be generated to decide between stops. Raises UsageError if a stop is empty or not a string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise UsageError("stop strings must be a list of non-empty strings")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self._stopped: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that can be shown now, and the stop string that ended it, if one did.

        After a stop, every further push gives "" and the same stop string.
        """
        if self._stopped is not None:
            return "", self._stopped
        seen = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := seen.find(stop)) >= 0]
        if found:
            _, at, self._stopped = min(found)
            self._held = ""
            return seen[:at], self._stopped
        keep = min((_open_prefix(seen, stop) for stop in self._stops), default=len(seen))
        self._held = seen[keep:]
        return seen[:keep], None

    def finish(self) -> str:
        """The text that was held back for a stop string that never came; "" after a stop."""
        text, self._held = self._held, ""
        return text


def _open_prefix(seen: str, stop: str) -> int:
    """Where the longest end of `seen` that begins `stop` starts; len(seen) if there is none."""
    at = seen.find(stop[0], max(0, len(seen) - len(stop) + 1))
    while at >= 0 and not stop.startswith(seen[at:]):
        at = seen.find(stop[0], at + 1)
    return at if at >= 0 else len(seen)
