"""A file of lessons: in which shares, without repeats, and what is in it."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import Field

from ...config import Frozen
from ...files import replacing
from .conversations import turns
from .documents import decisions, extraction

SHARES: tuple[tuple[Callable[[random.Random], dict[str, Any]], float], ...] = (
    (turns, 0.7), (extraction, 0.12), (decisions, 0.18),
)  # fmt: skip


class LessonConfig(Frozen):
    """How many lines, and from which seed: line i depends on nothing else."""

    count: int = Field(12_000, gt=0)
    seed: int = Field(0, ge=0)


@dataclass
class Statistics:
    """What a file holds: lines, user turns and tools by their names, repeats that were dropped, lines by skill."""

    lines: int = 0
    repeats: int = 0
    tools: set[str] = field(default_factory=set)
    skills: Counter[str] = field(default_factory=Counter)
    calls: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For printing."""
        skills = dict(sorted(self.skills.items()))
        return {
            "lines": self.lines,
            "repeats": self.repeats,
            "tools": len(self.tools),
            "calls": self.calls,
            "skills": skills,
        }

    def add(self, line: dict[str, Any]) -> None:
        """Count a line."""
        self.lines += 1
        self.skills[line["skill"]] += 1
        self.tools |= {tool["function"]["name"] for tool in line.get("tools", ())}
        self.calls += sum(len(message.get("tool_calls", ())) for message in line["messages"])


def lessons(config: LessonConfig, statistics: Statistics | None = None) -> Iterator[dict[str, Any]]:
    """Lines in OpenAI's shape: `messages`, `tools` where there are some, `skill`, and `complete`.

    Arguments are objects. Lines without tools whose request was there before are dropped; of those with tools, the
    first request alone (it may be a greeting) doesn't say what they are.
    """
    statistics = Statistics() if statistics is None else statistics
    kinds, shares = zip(*SHARES, strict=True)
    seen: set[str] = set()
    for index in range(config.count):
        chance = random.Random(f"{config.seed}:{index}")
        (kind,) = chance.choices(kinds, shares)
        line = {**kind(chance), "complete": True}
        first = next(message["content"] for message in line["messages"] if message["role"] == "user")
        if first in seen and not line.get("tools"):
            statistics.repeats += 1
            continue
        seen.add(first)
        statistics.add(line)
        yield line


def write_lessons(config: LessonConfig, path: Path, on_line: Callable[[int], None] = lambda done: None) -> Statistics:
    """Write a file of lessons (.jsonl, or .jsonl.gz), whole or not at all."""
    statistics = Statistics()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial, partial.open("wb") as raw, _packed(raw, path) as file:
        for line in lessons(config, statistics):
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            on_line(statistics.lines)
    return statistics


def _packed(raw: BinaryIO, path: Path) -> AbstractContextManager[BinaryIO]:
    """The file to write to. No name and no time go into it: equal seeds give equal bytes."""
    if path.suffix != ".gz":
        return nullcontext(raw)
    return cast(BinaryIO, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))
