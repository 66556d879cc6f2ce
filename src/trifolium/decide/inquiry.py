"""What is asked: a state, questions about it, and which of them are answered together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import QuestionError
from .constraints import (
    Condition,
    Constraint,
    Implication,
    assignments,
    parse_condition,
    parse_constraint,
)
from .questions import Question, check_questions

MAX_GROUP = 8
MAX_ORDERS = 16
MAX_TOP = 100
TWO_ORDERS = 64
"""Legal assignments up to which a group is asked in two orders, unless told otherwise."""


@dataclass(frozen=True)
class Group:
    """Questions that are answered together, by their names, and what must hold between the answers.

    `constraints` as `constraints.parse_constraint` reads them. `top`: how many of the likeliest answers to list.
    `given`: {name: value} under which conditional answers are wanted. `orders`: over how many orders of questions and
    options to average; None: two for groups of up to TWO_ORDERS legal answers, one beyond.
    """

    questions: Sequence[str]
    constraints: Sequence[Mapping[str, Any]] = ()
    top: int = 5
    given: Mapping[str, Any] = field(default_factory=dict)
    orders: int | None = None

    @classmethod
    def parse(cls, given: Any) -> Group:
        """A group as the wires write it. Raises QuestionError that names the fault."""
        if not isinstance(given, Mapping):
            raise QuestionError('a joint group is an object: {"questions": [...], "constraints": [...]}')
        known = tuple(cls.__dataclass_fields__)
        if unknown := sorted(str(key) for key in given if key not in known):
            raise QuestionError(f"unknown keys {', '.join(unknown)}; known: {', '.join(known)}", (unknown[0],))
        for key in ("questions", "constraints"):
            if not isinstance(given.get(key, []), list):
                raise QuestionError("a list belongs here", (key,))
        if not isinstance(given.get("given", {}), Mapping):
            raise QuestionError("an object that gives questions of the group their values belongs here", ("given",))
        return cls(**{"questions": [], **given})


@dataclass(frozen=True)
class CheckedGroup:
    """A group that can be asked. `places`: its questions' indices. `legal`: all legal answers, None for too many."""

    places: tuple[int, ...]
    questions: tuple[Question, ...]
    constraints: tuple[Constraint, ...]
    legal: tuple[tuple[int, ...], ...] | None
    top: int
    given: Condition | None
    orders: int


@dataclass(frozen=True)
class Inquiry:
    """A checked request: nothing is wrong with it but, maybe, its length.

    `orders`: over how many orders of the options isolated answers are averaged.
    """

    state: str
    questions: tuple[Question, ...]
    groups: tuple[CheckedGroup, ...] = ()
    orders: int = 1

    @classmethod
    def of(cls, state: str, questions: Sequence[Question], groups: Sequence[Group] = (), orders: int = 1) -> Inquiry:
        """Check questions and groups. Raises QuestionError that says where the fault is."""
        check_questions(questions)
        check_orders(orders, ("orders",))
        checked, taken = [], set[int]()
        for i, group in enumerate(groups):
            try:
                checked.append(check_group(group, questions))
                if twice := taken.intersection(checked[-1].places):
                    name = questions[min(twice)].name
                    raise QuestionError(f"{name!r} is in two groups; its answer would be ambiguous", ("questions",))
            except QuestionError as error:
                raise error.under("joint", i) from None
            taken.update(checked[-1].places)
        return cls(state, tuple(questions), tuple(checked), orders)

    @property
    def alone(self) -> tuple[int, ...]:
        """Questions that are in no group."""
        grouped = {place for group in self.groups for place in group.places}
        return tuple(i for i in range(len(self.questions)) if i not in grouped)


def check_group(group: Group, questions: Sequence[Question]) -> CheckedGroup:
    """A group with its names and constraints resolved, and its legal assignments. Raises QuestionError."""
    names = {question.name: i for i, question in enumerate(questions)}
    if not 1 <= len(group.questions) <= MAX_GROUP:
        raise QuestionError(f"{len(group.questions)} questions: a group has 1 to {MAX_GROUP}", ("questions",))
    places = []
    for i, name in enumerate(group.questions):
        if not isinstance(name, str) or name not in names:
            raise QuestionError(f"there is no question {name!r}", ("questions", i))
        if names[name] in places:
            raise QuestionError(f"{name!r} is there twice", ("questions", i))
        places.append(names[name])
    if type(group.top) is not int or not 1 <= group.top <= MAX_TOP:
        raise QuestionError(f"top is a number from 1 to {MAX_TOP}", ("top",))
    members = tuple(questions[place] for place in places)
    constraints = []
    for i, constraint in enumerate(group.constraints):
        try:
            constraints.append(parse_constraint(constraint, members))
        except QuestionError as error:
            raise error.under("constraints", i) from None
    legal = assignments(members, constraints)
    given = parse_condition(group.given, members) if group.given else None
    if given is not None:
        _check_given(given, members, constraints, legal)
    if group.orders is not None:
        check_orders(group.orders, ("orders",))
    few = legal is not None and len(legal) <= TWO_ORDERS
    orders = (2 if few else 1) if group.orders is None else group.orders
    if legal is None and orders > 1:
        raise QuestionError("a group of more than 4,096 legal answers is searched in one order", ("orders",))
    fixed = None if legal is None else tuple(legal)
    return CheckedGroup(tuple(places), members, tuple(constraints), fixed, group.top, given, orders)


def _check_given(
    given: Condition,
    questions: Sequence[Question],
    constraints: Sequence[Constraint],
    legal: Sequence[tuple[int, ...]] | None,
) -> None:
    """Raises QuestionError if no legal answers fulfil the condition."""
    if legal is not None:
        possible = any(given.holds(assignment) for assignment in legal)
    else:
        try:
            assignments(questions, [*constraints, Implication(Condition({}), given)], most=0)
            possible = True
        except QuestionError:
            possible = False
    if not possible:
        raise QuestionError("the constraints rule out what is given", ("given",))


def check_orders(orders: object, where: tuple[str | int, ...]) -> None:
    """Raises QuestionError for a number of orders that can't be averaged over."""
    if type(orders) is not int or not 1 <= orders <= MAX_ORDERS:
        raise QuestionError(f"orders is a number from 1 to {MAX_ORDERS}", where)
