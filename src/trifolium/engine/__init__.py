"""The engine: requests in, tokens out, one pass at a time."""

from .engine import MAX_ROWS, MAX_RUNNING, Engine, Handle, Stats
from .events import CanvasEvent, Cell, Event, FinishedEvent, Result, TextEvent, TokenLogprob
from .request import Request

__all__ = [
    "MAX_ROWS",
    "MAX_RUNNING",
    "CanvasEvent",
    "Cell",
    "Engine",
    "Event",
    "FinishedEvent",
    "Handle",
    "Request",
    "Result",
    "Stats",
    "TextEvent",
    "TokenLogprob",
]
