"""Aligned `name  value` lines. Plain text: a path must never be wrapped, or cut, where someone would copy it."""

from __future__ import annotations

from collections.abc import Mapping


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one line a field; an absent (None) value is a dash."""
    width = max(map(len, fields)) + 2
    for name, value in fields.items():
        print(f"{name:<{width}}{'-' if value is None else value}")
