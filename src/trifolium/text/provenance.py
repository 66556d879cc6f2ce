"""Text that remembers which of its characters came from outside a chat template.

A template joins its own markers with what people wrote. Whether a marker is real can't be seen in the joined text, so
every string of a message goes in as a `Foreign` string, and joining keeps track. Whatever else a template does with
such a string gives text that counts as foreign as a whole: when in doubt, a marker is only text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

__all__ = ["Foreign", "adopt", "foreign", "is_foreign", "join"]

Spans = tuple[tuple[int, int], ...]


class Foreign(str):
    """A string with `spans`: the sorted, disjoint (start, stop) ranges of characters that are not the template's.

    It equals, hashes and behaves as the plain string does. Joining, slicing and stripping keep the spans exact.
    """

    spans: Spans

    def __new__(cls, text: str, spans: Spans | None = None) -> Foreign:
        self = super().__new__(cls, text)
        self.spans = (((0, len(text)),) if text else ()) if spans is None else spans
        return self

    def __str__(self) -> str:
        return self  # a plain copy would forget the spans

    def __add__(self, other: str) -> str:
        return join((self, other))

    def __radd__(self, other: str) -> str:
        return join((other, self))

    def __iter__(self) -> Iterator[str]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        text = super().__getitem__(key)
        if not isinstance(key, slice):
            place = key.__index__() % len(self)
            return self._cut(text, place)
        start, _, step = key.indices(len(self))
        return self._cut(text, start) if step == 1 else Foreign(text)

    def strip(self, chars: str | None = None, /) -> str:
        return self._cut(super().strip(chars), len(self) - len(super().lstrip(chars)))

    def lstrip(self, chars: str | None = None, /) -> str:
        text = super().lstrip(chars)
        return self._cut(text, len(self) - len(text))

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._cut(super().rstrip(chars), 0)

    def _cut(self, text: str, start: int) -> str:
        """`text` is what stands in self from `start` on."""
        stop = start + len(text)
        kept = ((max(left, start) - start, min(right, stop) - start) for left, right in self.spans)
        spans = tuple((left, right) for left, right in kept if left < right)
        return Foreign(text, spans) if spans else text

    def own(self) -> list[tuple[int, int]]:
        """The ranges that are the template's own: the gaps between `spans`."""
        edges = [0, *(edge for span in self.spans for edge in span), len(self)]
        return [(left, right) for left, right in zip(edges[::2], edges[1::2], strict=True) if left < right]


def join(parts: Iterable[str]) -> str:
    """The parts one after the other; a plain string if none of them is foreign."""
    parts = list(parts)
    text = "".join(parts)
    spans: list[tuple[int, int]] = []
    offset = 0
    for part in parts:
        if isinstance(part, Foreign):
            for left, right in part.spans:
                if spans and spans[-1][1] == offset + left:
                    spans[-1] = (spans[-1][0], offset + right)
                else:
                    spans.append((offset + left, offset + right))
        offset += len(part)
    return Foreign(text, tuple(spans)) if spans else text


def foreign(value: Any) -> Any:
    """The same JSON value with every string in it, keys included, made Foreign.

    Raises TypeError for what JSON doesn't have: such objects could have methods that a template shouldn't call.
    """
    if isinstance(value, str):
        return Foreign(str.__str__(value))
    if isinstance(value, Mapping):
        return {foreign(key): foreign(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [foreign(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(f"messages, tools and variables hold JSON values only, not {type(value).__name__}")


def is_foreign(value: Any) -> bool:
    """Whether any string inside `value` is Foreign."""
    if isinstance(value, Mapping):
        return any(is_foreign(key) or is_foreign(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return any(is_foreign(item) for item in value)
    return isinstance(value, Foreign)


def adopt(result: Any) -> Any:
    """What an operation on foreign values gave: plain strings in it become foreign as a whole."""
    if isinstance(result, Foreign) or not result:
        return result
    if isinstance(result, str):
        return Foreign(result)
    if isinstance(result, dict):
        return {adopt(key): adopt(item) for key, item in result.items()}
    if isinstance(result, list | tuple):
        items = (adopt(item) for item in result)
        return list(items) if isinstance(result, list) else tuple(items)
    return result
