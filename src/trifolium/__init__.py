"""Trifolium: block-diffusion language models for agents.

    import trifolium

    lm = trifolium.load()
    print(lm.generate("Name the capital of France.").text)

The exports load when they are first used, so `import trifolium` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import LM, load
    from .config import DecodeConfig, SamplingParams
    from .decide import Decisions, Group, Question
    from .engine import CanvasEvent, Cell, Event, FinishedEvent, Result, TextEvent
    from .errors import TrifoliumError
    from .train.convert import convert_base, train_recipe

__version__ = "0.1.0.dev0"

_HOMES = {
    "LM": "api",
    "CanvasEvent": "engine",
    "Cell": "engine",
    "DecodeConfig": "config",
    "Decisions": "decide",
    "Event": "engine",
    "FinishedEvent": "engine",
    "Group": "decide",
    "Question": "decide",
    "Result": "engine",
    "SamplingParams": "config",
    "TextEvent": "engine",
    "TrifoliumError": "errors",
    "convert_base": "train.convert",
    "load": "api",
    "train_recipe": "train.convert",
}

__all__ = [
    "LM",
    "CanvasEvent",
    "Cell",
    "Decisions",
    "DecodeConfig",
    "Event",
    "FinishedEvent",
    "Group",
    "Question",
    "Result",
    "SamplingParams",
    "TextEvent",
    "TrifoliumError",
    "__version__",
    "convert_base",
    "load",
    "train_recipe",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
