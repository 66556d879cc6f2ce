"""What answers of a joint group may stand together, and the assignments that do.

An assignment gives every question of a group an option, by index. Constraints look at beginnings of assignments, too:
`allows` is False only if no way to go on can help, and exact once every question has its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import QuestionError
from .questions import Question

MAX_EXACT = 4096
"""Legal assignments up to which a group is answered exactly."""

MAX_STEPS = 200_000
"""Beginnings of assignments that are looked at to find legal ones."""

Partial = Sequence[int | None]
"""For each question its option, None where it is open."""


@dataclass(frozen=True)
class Condition:
    """Some questions have one of some options each: {question: options}, all by index."""

    options: Mapping[int, frozenset[int]]

    def holds(self, partial: Partial) -> bool | None:
        """Whether it does; None where that is open."""
        verdict: bool | None = True
        for question, allowed in self.options.items():
            option = partial[question]
            if option is None:
                verdict = None
            elif option not in allowed:
                return False
        return verdict


class Constraint(Protocol):
    """A rule that legal assignments keep."""

    def allows(self, partial: Partial) -> bool:
        """Whether it is kept, or may still be."""
        ...


@dataclass(frozen=True)
class Implication:
    """Where `condition` holds, `then` holds."""

    condition: Condition
    then: Condition

    def allows(self, partial: Partial) -> bool:
        """See Constraint."""
        return self.condition.holds(partial) is not True or self.then.holds(partial) is not False


@dataclass(frozen=True)
class Count:
    """At least `least` and at most `most` of the conditions hold."""

    conditions: tuple[Condition, ...]
    least: int
    most: int

    def allows(self, partial: Partial) -> bool:
        """See Constraint."""
        verdicts = [condition.holds(partial) for condition in self.conditions]
        return verdicts.count(True) <= self.most and len(verdicts) - verdicts.count(False) >= self.least


@dataclass(frozen=True)
class Order:
    """The scores of these questions don't fall from one to the next. `levels`: how many each of them has."""

    questions: tuple[int, ...]
    levels: tuple[int, ...]

    def allows(self, partial: Partial) -> bool:
        """See Constraint."""
        least = 0
        for question, levels in zip(self.questions, self.levels, strict=True):
            option = partial[question]
            if (levels - 1 if option is None else option) < least:
                return False
            least = least if option is None else option
        return True


def allowed(constraints: Sequence[Constraint], partial: Partial) -> bool:
    """Whether all constraints are kept, or may still be."""
    return all(constraint.allows(partial) for constraint in constraints)


def assignments(
    questions: Sequence[Question], constraints: Sequence[Constraint], most: int = MAX_EXACT
) -> list[tuple[int, ...]] | None:
    """All legal assignments, the first question's options slowest; None for more than `most` of them.

    Raises QuestionError if there is none, or if none was found in MAX_STEPS steps.
    """
    found: list[tuple[int, ...]] = []
    for assignment in _search(questions, constraints):
        if assignment is None:
            break
        found.append(assignment)
        if len(found) > most:
            return None
    else:
        if not found:
            raise QuestionError("the constraints contradict each other: no answers satisfy them all", ("constraints",))
        return found
    if not found:
        raise QuestionError(
            f"no answers that satisfy the constraints turned up in {MAX_STEPS:,} steps: use fewer of them",
            ("constraints",),
        )
    return None


def _search(questions: Sequence[Question], constraints: Sequence[Constraint]) -> Iterator[tuple[int, ...] | None]:
    """Legal assignments, depth first; None, and the end, after MAX_STEPS steps."""
    partial: list[int | None] = [None] * len(questions)
    steps = 0
    level = 0
    at = [-1] * len(questions)
    while level >= 0:
        at[level] += 1
        if at[level] == len(questions[level].options):
            at[level], partial[level] = -1, None
            level -= 1
            continue
        steps += 1
        if steps > MAX_STEPS:
            yield None
            return
        partial[level] = at[level]
        if not allowed(constraints, partial):
            continue
        if level + 1 < len(questions):
            level += 1
        else:
            yield tuple(at)


def parse_constraint(given: Any, questions: Sequence[Question]) -> Constraint:
    """A constraint as the wires write it. Raises QuestionError that names the fault.

    {"if": {...}, "then": {...}}; {"exactly" | "at_most" | "at_least": k, "of": [{...}, ...]}; {"not": {...}}: not all
    of these together; {"order": [names]}: scores that don't fall. {...} gives questions their values, or lists of them.
    """
    if not isinstance(given, Mapping):
        raise QuestionError("a constraint is an object")
    keys = set(given)
    if keys == {"if", "then"}:
        return Implication(
            parse_condition(given["if"], questions, "if"), parse_condition(given["then"], questions, "then")
        )
    if keys == {"not"}:
        return Count((parse_condition(given["not"], questions, "not"),), 0, 0)
    if keys == {"order"}:
        return _order(given["order"], questions)
    for kind in ("exactly", "at_most", "at_least"):
        if keys == {kind, "of"}:
            return _count(kind, given[kind], given["of"], questions)
    raise QuestionError(
        f"a constraint of {', '.join(map(repr, sorted(map(str, keys)))) or 'nothing'}; known are if/then, exactly/of, "
        "at_most/of, at_least/of, not, and order"
    )


def parse_condition(given: Any, questions: Sequence[Question], where: str | int = "given") -> Condition:
    """{question name: value or list of values} as a Condition. Raises QuestionError."""
    if not isinstance(given, Mapping) or not given:
        raise QuestionError("a condition is an object that gives questions of the group their values", (where,))
    names = {question.name: i for i, question in enumerate(questions)}
    options: dict[int, frozenset[int]] = {}
    for name, value in given.items():
        if name not in names:
            known = ", ".join(repr(question.name) for question in questions)
            raise QuestionError(f"{name!r} is no question of this group; it has {known}", (where, str(name)))
        question = questions[names[name]]
        values = value if isinstance(value, list) else [value]
        if not values:
            raise QuestionError("an empty list of values can't hold", (where, name))
        try:
            options[names[name]] = frozenset(question.index(v) for v in values)
        except QuestionError as error:
            raise QuestionError(str(error), (where, name)) from None
    return Condition(options)


def _count(kind: str, k: Any, of: Any, questions: Sequence[Question]) -> Count:
    if not isinstance(of, list) or not of:
        raise QuestionError("a list of conditions belongs here", ("of",))
    conditions = []
    for i, condition in enumerate(of):
        try:
            conditions.append(parse_condition(condition, questions, i))
        except QuestionError as error:
            raise error.under("of") from None
    if type(k) is not int or not 0 <= k <= len(conditions):
        raise QuestionError(f"{k!r} is no number from 0 to {len(conditions)}, as many conditions as there are", (kind,))
    return Count(tuple(conditions), 0 if kind == "at_most" else k, len(conditions) if kind == "at_least" else k)


def _order(names: Any, questions: Sequence[Question]) -> Order:
    if not isinstance(names, list) or len(names) < 2:
        raise QuestionError("an order needs the names of at least two score questions", ("order",))
    places = {question.name: i for i, question in enumerate(questions)}
    for i, name in enumerate(names):
        if not isinstance(name, str) or name not in places or questions[places[name]].type != "score":
            raise QuestionError(f"{name!r} is no score question of this group", ("order", i))
    indices = tuple(places[name] for name in names)
    return Order(indices, tuple(len(questions[i].options) for i in indices))
