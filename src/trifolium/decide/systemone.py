"""POST /v1/systemone: the request and response of the public client `typesafe-sdk`, and `trifolium decide`'s file.

`read` makes an inquiry of a request, `write` a response of decisions; what is wrong is a QuestionError whose `where` is
the place in the request, and `detail` shapes it as the wire's 422 body.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from ..errors import QuestionError, UsageError
from .answers import Answer, Decisions, JointAnswer
from .inquiry import Group, Inquiry
from .questions import Option, Question, QuestionType, label_of
from .sheet import text_of

Json = dict[str, Any]
T = TypeVar("T", bound=str)

_TYPES: tuple[QuestionType, ...] = ("noul", "choice", "score")
_KNOWN = ("model", "state", "questions", "trifolium")
_KNOWN_OURS = ("joint", "orders")
_KNOWN_QUESTION = ("type", "instructions", "criteria")


def parse(text: str | bytes) -> Any:
    """JSON whose objects have no key twice: of two questions of one name, the first would be lost without a word.

    Raises QuestionError.
    """

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise QuestionError(f"the name {twice!r} is there twice in one object")
        return found

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise QuestionError(f"this is not JSON: {error}") from None


def read(body: Any) -> Inquiry:
    """A request's inquiry. Raises QuestionError whose `where` leads to the fault."""
    if not isinstance(body, Mapping):
        raise QuestionError("a request is an object with a state and questions")
    if "assets" in body:
        raise QuestionError("images can't be read: send text or JSON only", ("assets",))
    _only(body, _KNOWN, ())
    if body.get("state") is None:
        raise QuestionError("the state is missing: what the questions are about", ("state",))
    if not isinstance(body["state"], str | Mapping | list):
        raise QuestionError("a state is text, an object or an array", ("state",))
    questions = read_questions(body.get("questions"))
    groups, orders = read_extension(body.get("trifolium"))
    return inquire(text_of(body["state"]), questions, groups, orders)


def read_questions(given: Any) -> list[Question]:
    """Questions by name. Raises QuestionError."""
    if not isinstance(given, Mapping) or not given:
        raise QuestionError("questions are an object: a question for each name, at least one", ("questions",))
    return [read_question(name, question) for name, question in given.items()]


def read_question(name: str, given: Any) -> Question:
    """One question. Raises QuestionError."""
    where = ("questions", name)
    kind = read_type(given, _TYPES, where)
    _only(given, _KNOWN_QUESTION, where)
    instructions, criteria = given.get("instructions"), given.get("criteria")
    try:
        options = _READERS[kind](criteria)
        return Question(name, kind, text_of(instructions), options)
    except QuestionError as error:
        raise placed(error, where, "criteria") from None


def read_type(given: Any, known: Collection[T], where: tuple[str | int, ...]) -> T:
    """A question's type, one of those that the wire has. Raises QuestionError."""
    if not isinstance(given, Mapping):
        raise QuestionError("a question is an object with a type", where)
    kind = given.get("type")
    if kind == "box":
        raise QuestionError("box questions ask about images, which this server can't read", (*where, "type"))
    for one in known:
        if kind == one:
            return one
    raise QuestionError(f"unknown question type {kind!r}; known: {', '.join(map(str, known))}", (*where, "type"))


def placed(error: QuestionError, where: tuple[str | int, ...], options: str) -> QuestionError:
    """A question's fault, by its place in the request; `options`: the key that holds them on the wire."""
    place = error.where or ("options",)
    return QuestionError(str(error), (options if place[0] == "options" else place[0], *place[1:])).under(*where)


def _noul(criteria: Any) -> tuple[Option, ...]:
    criteria = {} if criteria is None else criteria
    if not isinstance(criteria, Mapping) or set(criteria) - {"true", "false"}:
        raise QuestionError("criteria of a yes-or-no question are an object with true, false or both", ("criteria",))
    yes, no = (text_of(criteria.get(key)) for key in ("true", "false"))
    return Option(True, "Yes", yes), Option(False, "No", no)


def _choice(criteria: Any) -> tuple[Option, ...]:
    if not isinstance(criteria, Mapping):
        raise QuestionError("criteria of a choice are an object: a description or null for each option", ("criteria",))
    return tuple(Option(name, label_of(name), text_of(text)) for name, text in criteria.items())


def _score(criteria: Any) -> tuple[Option, ...]:
    if not isinstance(criteria, list):
        raise QuestionError("criteria of a score are a list of levels, lowest first", ("criteria",))
    return tuple(Option(i, text_of(level)) for i, level in enumerate(criteria))


_READERS = {"noul": _noul, "choice": _choice, "score": _score}


def read_extension(given: Any) -> tuple[list[Group], int]:
    """Joint groups and the number of orders, from the key `trifolium` that both wires share. Raises QuestionError."""
    if given is None:
        return [], 1
    if not isinstance(given, Mapping):
        raise QuestionError("an object with joint, orders or both belongs here", ("trifolium",))
    _only(given, _KNOWN_OURS, ("trifolium",))
    joint = given.get("joint", [])
    if not isinstance(joint, list):
        raise QuestionError("a list of groups belongs here", ("trifolium", "joint"))
    groups = []
    for i, group in enumerate(joint):
        try:
            groups.append(Group.parse(group))
        except QuestionError as error:
            raise error.under("trifolium", "joint", i) from None
    return groups, given.get("orders", 1)


def inquire(state: str, questions: Sequence[Question], groups: Sequence[Group], orders: int) -> Inquiry:
    """The checked inquiry; faults of groups and orders lie under the key `trifolium`. Raises QuestionError."""
    try:
        return Inquiry.of(state, questions, groups, orders)
    except QuestionError as error:
        if error.where[:1] in (("joint",), ("orders",)):
            raise error.under("trifolium") from None
        raise


def write(decisions: Decisions, model: str) -> Json:
    """The response's body."""
    body: Json = {
        "model": model,
        "answers": {answer.question.name: write_answer(answer) for answer in decisions.answers},
        "usage": {
            "input_tokens": decisions.usage.input_tokens,
            "output_tokens": decisions.usage.output_tokens,
        },
    }
    if decisions.joint:
        body["joint"] = [write_joint(joint, write_answer) for joint in decisions.joint]
    return body


def write_answer(answer: Answer) -> Json:
    """One answer, as its question's type has it."""
    question, probabilities = answer.question, answer.probabilities
    if question.type == "noul":
        return {"type": "noul", "noul": answer.yes}
    if question.type == "choice":
        return {
            "type": "choice",
            "choice": label_of(answer.value),
            "confidence": answer.confidence,
            "probabilities": {o.label: p for o, p in zip(question.options, probabilities, strict=True)},
        }
    return {
        "type": "score",
        "score": answer.score,
        "confidence": answer.confidence,
        "legend": {str(i): option.label for i, option in enumerate(question.options)},
        "probabilities": {str(i): p for i, p in enumerate(probabilities)},
    }


def write_joint(joint: JointAnswer, shape: Callable[[Answer], Json]) -> Json:
    """A group's part of the response; `shape` writes one answer."""
    return {
        "best": dict(joint.best.answers),
        "probability": joint.best.probability,
        "top": [{"answers": dict(one.answers), "probability": one.probability} for one in joint.top],
        "unseen_mass": joint.unseen_mass,
        "conditionals": {answer.question.name: shape(answer) for answer in joint.conditionals()},
    }


def detail(error: UsageError) -> Json:
    """The body of a 422: what is wrong, and where."""
    where = error.where if isinstance(error, QuestionError) else ("state",)
    return {"detail": [{"loc": ["body", *where], "msg": str(error), "type": "value_error"}]}


def _only(given: Mapping[str, Any], known: Sequence[str], where: tuple[str | int, ...]) -> None:
    """Raises QuestionError for a key that isn't known: what was meant would be lost without a word."""
    for key in given:
        if key not in known:
            raise QuestionError(f"unknown key {key!r}; known: {', '.join(known)}", (*where, str(key)))
