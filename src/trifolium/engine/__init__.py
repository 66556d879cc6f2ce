"""The engine: requests in, tokens out, one pass at a time."""

from .engine import Engine, Handle
from .events import CanvasEvent, Cell, Event, FinishedEvent, Result, TextEvent
from .request import Request

__all__ = ["CanvasEvent", "Cell", "Engine", "Event", "FinishedEvent", "Handle", "Request", "Result", "TextEvent"]
