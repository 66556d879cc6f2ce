"""Typed questions: yes or no, one of several options, a level on a scale.

Everything that is wrong with a question is said before a model runs, with the place in the request where it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import QuestionError

MAX_QUESTIONS = 400
MAX_OPTIONS = 255

Value = str | bool | int
"""What a question can be answered with: a boolean (noul), a string or boolean (choice), a level's number (score)."""

QuestionType = Literal["noul", "choice", "score"]
TYPES: tuple[QuestionType, ...] = ("noul", "choice", "score")


def same(a: Value, b: Value) -> bool:
    """Whether two values are one: the string "true" is not the boolean, and neither is the number 1."""
    return type(a) is type(b) and a == b


@dataclass(frozen=True)
class Option:
    """One possible answer. `label`: what the model reads as its name."""

    value: Value
    label: str
    description: str = ""


@dataclass(frozen=True)
class Question:
    """A question and its options, in order. Use `noul`, `choice` or `score` to make one.

    Raises QuestionError if it can't be asked.
    """

    name: str
    type: QuestionType
    instructions: str
    options: tuple[Option, ...]

    def __post_init__(self) -> None:
        if self.type not in TYPES:
            raise QuestionError(f"unknown question type {self.type!r}; known: {', '.join(TYPES)}", ("type",))
        count, what = len(self.options), "levels" if self.type == "score" else "options"
        if count < 2:
            raise QuestionError(f"{count} of the {what} that a question needs: give at least two", ("options",))
        if count > MAX_OPTIONS:
            raise QuestionError(f"{count} {what}: a question may have up to {MAX_OPTIONS}", ("options",))
        seen: set[tuple[type, Value]] = set()
        for i, option in enumerate(self.options):
            key = (type(option.value), option.value)
            if key in seen:
                raise QuestionError(f"the option {option.value!r} is there twice", ("options", i))
            seen.add(key)
        if not self.instructions.strip() and not any(o.description or self.type != "noul" for o in self.options):
            raise QuestionError("a yes-or-no question needs instructions or a described outcome", ("instructions",))

    @classmethod
    def noul(cls, name: str, instructions: str, *, yes: str = "", no: str = "") -> Question:
        """A question for yes or no. `yes`, `no`: when the one and the other is right."""
        return cls(name, "noul", instructions, (Option(True, "Yes", yes), Option(False, "No", no)))

    @classmethod
    def choice(cls, name: str, instructions: str, options: Mapping[str, str] | Iterable[str | bool]) -> Question:
        """One of 2 to 255 options: values, or values with descriptions."""
        described = options.items() if isinstance(options, Mapping) else [(value, "") for value in options]
        return cls(name, "choice", instructions, tuple(Option(v, label_of(v), text) for v, text in described))

    @classmethod
    def score(cls, name: str, instructions: str, levels: Sequence[str]) -> Question:
        """One of 2 to 255 levels, lowest first; they count 0, 1, 2, ..."""
        return cls(name, "score", instructions, tuple(Option(i, level) for i, level in enumerate(levels)))

    @property
    def text(self) -> str:
        """All its words, which say how long its sheet may become."""
        return "\n".join((self.instructions, *(f"{o.label}: {o.description}" for o in self.options)))

    def index(self, value: object) -> int:
        """Which option has this value. Raises QuestionError that lists the options."""
        for i, option in enumerate(self.options):
            if isinstance(value, str | bool | int) and same(option.value, value):
                return i
        known = ", ".join(repr(option.value) for option in self.options[:8])
        more = ", ..." if len(self.options) > 8 else ""
        raise QuestionError(f"question {self.name!r} has no option {value!r}; it has {known}{more}")


def label_of(value: Value) -> str:
    """A value as the model reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_questions(questions: Sequence[Question]) -> None:
    """Raises QuestionError for none, too many, or two of the same name."""
    if not questions:
        raise QuestionError("there is no question to answer", ("questions",))
    if len(questions) > MAX_QUESTIONS:
        raise QuestionError(f"{len(questions)} questions: up to {MAX_QUESTIONS} can be asked at once", ("questions",))
    seen: set[str] = set()
    for i, question in enumerate(questions):
        if question.name in seen:
            raise QuestionError(f"two questions are called {question.name!r}", ("questions", i, "name"))
        seen.add(question.name)
