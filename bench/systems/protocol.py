"""What the driver and a program's process say to each other: tasks in, answers with their times out, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Ask:
    """One prompt, as token ids after the chat template, and the longest answer."""

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    ignore_eos: bool = False


@dataclass
class Answer:
    """What came back, and when.

    `tokens` counts the answer up to its first end token, which is not part of it. `arrivals`: (seconds since the ask,
    tokens that came then). `passes`: forward passes from the one that gave the first token on; None if unknown.
    """

    id: str
    text: str
    tokens: int
    finish: Finish
    arrivals: list[tuple[float, int]]
    passes: float | None = None


@dataclass(frozen=True)
class Task:
    """A measurement. `at_once`: how many asks run together; 1 asks one after another."""

    key: str
    variant: str
    kind: Literal["answers", "rows", "overhead"] = "answers"
    at_once: int = 1
    asks: tuple[Ask, ...] = ()


@dataclass(frozen=True)
class Job:
    """All that a process is told: which model, how many threads, which tasks in which order.

    `slots` and `positions`: how many requests run together at most, and the longest prompt with its answer.
    `warm_up`: an ask unlike all others, and the conversation that it was encoded from. `quick`: only to see it run.
    """

    program: str
    model: str
    threads: int
    slots: int
    positions: int
    eos_ids: tuple[int, ...]
    warm_up: Ask
    warm_up_messages: tuple[dict[str, str], ...]
    tasks: tuple[Task, ...]
    quick: bool = False

    def as_dict(self) -> dict[str, Any]:
        """The object that `of` reads."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Job:
        """A job from its JSON."""
        tasks = tuple(Task(**{**t, "asks": tuple(_ask(a) for a in t["asks"])}) for t in values["tasks"])
        return cls(**{**values, "tasks": tasks, "warm_up": _ask(values["warm_up"])})


def _ask(values: dict[str, Any]) -> Ask:
    return Ask(**{**values, "prompt": tuple(values["prompt"])})


class System(Protocol):
    """A program with the model loaded, in one of its variants."""

    facts: dict[str, Any]
    """Versions and settings, for the record."""

    def template_tokens(self, messages: Sequence[dict[str, str]]) -> int | None:
        """Tokens of a conversation under the program's own chat template; None if it has none."""
        ...

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        """Answer all asks at once, greedily."""
        ...

    def special(self, kind: str) -> dict[str, Any]:
        """The measurements that only one program has ("rows", "overhead")."""
        ...


def model_file(model: str) -> Path:
    """The GGUF file at `model`, which may be its folder."""
    path = Path(model)
    return path if path.is_file() else sorted(path.glob("*.gguf"))[0]
