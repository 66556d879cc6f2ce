"""Questions with answers that are known: JSON lines of requests as `systemone` has them, with a key `gold`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import QuestionError, UsageError
from . import systemone
from .answers import Decisions
from .calibration import Labelled
from .inquiry import Inquiry
from .questions import Question


@dataclass(frozen=True)
class Line:
    """A request and, for every question that it is known of, the share of each option."""

    inquiry: Inquiry
    gold: Mapping[str, tuple[float, ...]]

    def label(self, decisions: Decisions) -> list[Labelled]:
        """The decisions beside what is right."""
        return [
            Labelled(answer, self.gold[answer.question.name])
            for answer in decisions.answers
            if answer.question.name in self.gold
        ]


def read(text: str) -> list[Line]:
    """All lines that aren't empty. Raises UsageError that names the line at fault."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                lines.append(_line(systemone.parse(line)))
            except QuestionError as error:
                place = ".".join(map(str, error.where))
                raise UsageError(f"line {number}: {place + ': ' if place else ''}{error}") from None
    if not any(line.gold for line in lines):
        raise UsageError("there is no answer to learn from: each line needs a state, questions and gold")
    return lines


def _line(body: Any) -> Line:
    if not isinstance(body, Mapping) or not isinstance(body.get("gold"), Mapping):
        raise QuestionError("gold is missing: an object that gives questions their right answers", ("gold",))
    inquiry = systemone.read({key: value for key, value in body.items() if key != "gold"})
    questions = {question.name: question for question in inquiry.questions}
    gold = {}
    for name, given in body["gold"].items():
        if name not in questions:
            raise QuestionError(f"there is no question {name!r}", ("gold", name))
        try:
            gold[name] = shares(questions[name], given)
        except QuestionError as error:
            raise QuestionError(str(error), ("gold", name)) from None
    return Line(inquiry, gold)


def shares(question: Question, given: Any) -> tuple[float, ...]:
    """Each option's share of the truth, from a value or from {value as text: probability}. Raises QuestionError."""
    if not isinstance(given, Mapping):
        right = question.index(given)
        return tuple(float(i == right) for i in range(len(question.options)))
    found = [0.0] * len(question.options)
    texts = {str(option.value).lower() if question.type == "noul" else str(option.value): i
             for i, option in enumerate(question.options)}  # fmt: skip
    for text, share in given.items():
        if text not in texts:
            raise QuestionError(f"no option {text!r}; known: {', '.join(texts)}")
        if not isinstance(share, int | float) or isinstance(share, bool) or not 0.0 <= share <= 1.0:
            raise QuestionError(f"{share!r} is no probability")
        found[texts[text]] = float(share)
    total = math.fsum(found)
    if total <= 0.0:
        raise QuestionError("the probabilities are all 0")
    return tuple(share / total for share in found)
