"""The engine: requests in, tokens out, one pass at a time."""

from .engine import MAX_ROWS, MAX_RUNNING, Engine, Stats
from .events import CanvasEvent, Cell, Event, FinishedEvent, Result, TextEvent, TokenLogprob
from .handle import Handle
from .request import Request
from .scores import Continuation, ScoreHandle, ScoreRequest, Scores

__all__ = [
    "MAX_ROWS",
    "MAX_RUNNING",
    "CanvasEvent",
    "Cell",
    "Continuation",
    "Engine",
    "Event",
    "FinishedEvent",
    "Handle",
    "Request",
    "Result",
    "ScoreHandle",
    "ScoreRequest",
    "Scores",
    "Stats",
    "TextEvent",
    "TokenLogprob",
]
