"""What a chat template may use, and what it has used."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jinja2.exceptions import SecurityError

__all__ = ["METER", "Limits", "Meter", "size", "too_large"]

METER = "render meter"  # the context's key for the Meter; no template can name it, since names hold no spaces


@dataclass(frozen=True)
class Limits:
    """What one template may use. Sizes are in characters; an element of a list counts eight, of a dict sixteen.

    `nodes` are parts of the syntax tree; `value` bounds each value and the output, `total` all values together;
    `width` bounds padding, `loop` a range; `seconds` are those of the thread's CPU clock, for one rendering.
    """

    source: int = 128 * 1024
    nodes: int = 16_000
    value: int = 8_000_000
    total: int = 128_000_000
    width: int = 10_000
    loop: int = 100_000
    seconds: float = 2.0


class Meter:
    """Counts what one rendering uses; raises SecurityError when that is too much."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._left = limits.total
        self._deadline = time.thread_time() + limits.seconds

    def tick(self) -> None:
        """One step of a loop, or one call."""
        if time.thread_time() > self._deadline:
            raise SecurityError(f"the template computes for longer than {self.limits.seconds:g} seconds")

    def spend(self, value: Any) -> Any:
        """Account for a new value, and give it back."""
        self._left -= size(value, self.limits)
        if self._left < 0:
            raise SecurityError(f"the template makes more than {self.limits.total} characters of values")
        self.tick()
        return value


def too_large(limits: Limits) -> SecurityError:
    """The error for a value that is too large."""
    return SecurityError(f"the template makes a value of more than {limits.value} characters")


def size(value: Any, limits: Limits) -> int:
    """The size of a value, with all that it holds, as often as it holds it; raises SecurityError if it is too large."""
    total = 0
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, int) and item.bit_length() > 1024:
            raise SecurityError("the template makes a number of more than 1024 bits")
        elif isinstance(item, Mapping):
            total += 16 * len(item)
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            total += 8 * len(item)
            stack.extend(item)
        total += 1
        if total + len(stack) > limits.value:
            raise too_large(limits)
    return total
