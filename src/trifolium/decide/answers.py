"""Answers: a probability for every option, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .constraints import Condition
from .questions import Question, Value


@dataclass(frozen=True)
class Answer:
    """The answer to one question. `probabilities`: one for each option, summing to 1."""

    question: Question
    probabilities: tuple[float, ...]

    @property
    def best(self) -> int:
        """Index of the likeliest option, the first among equals."""
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)

    @property
    def value(self) -> Value:
        """The likeliest option's value."""
        return self.question.options[self.best].value

    @property
    def probability(self) -> float:
        """The likeliest option's probability."""
        return self.probabilities[self.best]

    @property
    def yes(self) -> float:
        """Of a yes-or-no question: the probability of yes."""
        return self.probabilities[self.question.index(True)]

    @property
    def score(self) -> float:
        """Of a score question: the expected level."""
        return sum(i * p for i, p in enumerate(self.probabilities))

    @property
    def confidence(self) -> float:
        """How far the answer is from no answer at all, 0 to 1.

        With n options, (p_best - 1/n) / (1 - 1/n): 0 where all are equally likely, 1 where one is certain. For scores,
        1 less the expected distance in levels from the likeliest level, and at least 0: a neighbouring level counts for
        less of a doubt than one far away.
        """
        if self.question.type == "score":
            best = self.best
            return max(0.0, 1.0 - sum(abs(i - best) * p for i, p in enumerate(self.probabilities)))
        chance = 1.0 / len(self.probabilities)
        return max(0.0, (self.probability - chance) / (1.0 - chance))

    def as_dict(self) -> dict[str, Any]:
        """The object that `trifolium decide --json` prints."""
        out: dict[str, Any] = {"name": self.question.name, "type": self.question.type, "answer": self.value}
        if self.question.type == "score":
            out["score"] = self.score
        out["confidence"] = self.confidence
        out["probabilities"] = [
            {"value": option.value, "label": option.label, "probability": p}
            for option, p in zip(self.question.options, self.probabilities, strict=True)
        ]
        return out


@dataclass(frozen=True)
class Assigned:
    """One way to answer a whole group, and how likely it is."""

    answers: Mapping[str, Value]
    probability: float


@dataclass(frozen=True)
class JointAnswer:
    """A group's answer: legal assignments (an option's index for each question), likeliest first.

    `probabilities` sum to 1 - `unseen_mass`, which is the most that legal assignments beyond those listed may hold; 0
    unless the group was too large to be answered exactly. `orders`: how many orders were averaged.
    """

    questions: tuple[Question, ...]
    assignments: tuple[tuple[int, ...], ...]
    probabilities: tuple[float, ...]
    unseen_mass: float
    wanted: int
    given: Condition | None
    orders: int = 1

    @property
    def best(self) -> Assigned:
        """The likeliest answers."""
        return self._assigned(0)

    @property
    def top(self) -> tuple[Assigned, ...]:
        """The `wanted` likeliest answers."""
        return tuple(self._assigned(i) for i in range(min(self.wanted, len(self.assignments))))

    def marginals(self) -> tuple[Answer, ...]:
        """Each question's answer by itself, summed over the assignments that were seen."""
        return tuple(self._marginals(self.items()))

    def conditionals(self) -> tuple[Answer, ...]:
        """Each question's answer if what is `given` holds; () if nothing is, or nothing seen fulfils it."""
        if self.given is None:
            return ()
        return tuple(self._marginals([(a, p) for a, p in self.items() if self.given.holds(a)]))

    def items(self) -> Iterator[tuple[tuple[int, ...], float]]:
        """Assignments and their probabilities."""
        return zip(self.assignments, self.probabilities, strict=True)

    def _assigned(self, at: int) -> Assigned:
        values = {
            question.name: question.options[option].value
            for question, option in zip(self.questions, self.assignments[at], strict=True)
        }
        return Assigned(values, self.probabilities[at])

    def _marginals(self, items: Any) -> Iterator[Answer]:
        items = list(items)
        total = sum(p for _, p in items)
        if total <= 0.0:
            return
        for i, question in enumerate(self.questions):
            mass = [0.0] * len(question.options)
            for assignment, p in items:
                mass[assignment[i]] += p
            yield Answer(question, tuple(m / total for m in mass))

    def as_dict(self) -> dict[str, Any]:
        """The object that `trifolium decide --json` prints for a group."""
        return {
            "best": dict(self.best.answers),
            "probability": self.best.probability,
            "top": [{"answers": dict(one.answers), "probability": one.probability} for one in self.top],
            "unseen_mass": self.unseen_mass,
            "orders": self.orders,
            "conditionals": {answer.question.name: answer.as_dict() for answer in self.conditionals()},
        }


@dataclass(frozen=True)
class Usage:
    """Tokens that were read, of them from the prefix cache, and answers that were given.

    `input_tokens` counts the state once, and each sheet of questions once for every order.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True)
class Decisions:
    """All answers, in the order of the questions; those of grouped questions are their group's marginals."""

    answers: tuple[Answer, ...]
    joint: tuple[JointAnswer, ...]
    usage: Usage

    def __getitem__(self, name: str) -> Answer:
        """The answer to the question of this name. Raises KeyError."""
        for answer in self.answers:
            if answer.question.name == name:
                return answer
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """The object that `trifolium decide --json` prints."""
        return {
            "answers": [answer.as_dict() for answer in self.answers],
            "joint": [group.as_dict() for group in self.joint],
            "usage": {
                "input_tokens": self.usage.input_tokens,
                "cached_tokens": self.usage.cached_tokens,
                "output_tokens": self.usage.output_tokens,
            },
        }


def ranked(
    weights: Mapping[tuple[int, ...], float] | Sequence[tuple[tuple[int, ...], float]],
) -> tuple[tuple[tuple[int, ...], ...], tuple[float, ...]]:
    """Assignments by falling probability; equals in their own order."""
    pairs = sorted(weights.items() if isinstance(weights, Mapping) else weights, key=lambda pair: (-pair[1], pair[0]))
    return tuple(a for a, _ in pairs), tuple(p for _, p in pairs)
