"""POST /v1/decisions: the request and response of `client.decisions.create` in the public client `openai`.

As in `systemone`: `read` makes an inquiry of a request, `write` a response of decisions, and a QuestionError's `where`
is the place in the request. Choice values are strings or booleans: "true" is not true.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import QuestionError, UsageError
from .answers import Answer, Decisions
from .inquiry import Inquiry
from .questions import MAX_QUESTIONS, Option, Question, QuestionType, label_of
from .sheet import text_of
from .systemone import inquire, placed, read_extension, read_type, write_joint

Json = dict[str, Any]

_TYPES: dict[str, QuestionType] = {"predicate": "noul", "choice": "choice", "score": "score"}
_KNOWN = {"model", "input", "questions", "trifolium"}
_IGNORED = {"prompt_cache_key", "prompt_cache_options", "safety_identifier"}
"""What other servers need; nothing of it changes an answer."""

_ROLES = ("user", "developer", "system", "assistant")


def read(body: Any) -> Inquiry:
    """A request's inquiry. Raises QuestionError whose `where` leads to the fault."""
    if not isinstance(body, Mapping):
        raise QuestionError("a request is an object with an input and questions")
    for key in body:
        if key not in _KNOWN | _IGNORED:
            raise QuestionError(f"unknown key {key!r}; known: {', '.join(sorted(_KNOWN))}", (str(key),))
    given = body.get("questions")
    if not isinstance(given, list) or not 1 <= len(given) <= MAX_QUESTIONS:
        raise QuestionError(f"questions are a list of 1 to {MAX_QUESTIONS}", ("questions",))
    questions = [_question(question, ("questions", i), i) for i, question in enumerate(given)]
    groups, orders = read_extension(body.get("trifolium"))
    return inquire(read_input(body.get("input")), questions, groups, orders)


def read_input(given: Any) -> str:
    """Text, or messages, function calls and outputs, as one text. Raises QuestionError."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given:
        raise QuestionError("an input is text, or a list of messages, calls and outputs", ("input",))
    return "\n".join(_item(item, ("input", i)) for i, item in enumerate(given))


def _item(item: Any, where: tuple[str | int, ...]) -> str:
    if not isinstance(item, Mapping):
        raise QuestionError("an item of the input is an object", where)
    kind = item.get("type", "message")
    if kind == "message":
        if item.get("role") not in _ROLES:
            raise QuestionError(f"unknown role {item.get('role')!r}; known: {', '.join(_ROLES)}", (*where, "role"))
        return f"{item['role']}: {_content(item.get('content'), (*where, 'content'))}"
    if kind in ("function_call", "custom_tool_call"):
        argument = item.get("arguments" if kind == "function_call" else "input")
        if not isinstance(item.get("name"), str) or not isinstance(argument, str):
            raise QuestionError(f"a {kind} has a name and its input as text", where)
        return f"call {item['name']}: {argument}"
    if kind in ("function_call_output", "custom_tool_call_output"):
        return f"result: {_content(item.get('output'), (*where, 'output'))}"
    raise QuestionError(f"unknown type {kind!r} of an input item", (*where, "type"))


def _content(content: Any, where: tuple[str | int, ...]) -> str:
    """Text of a message, an output or an instruction: a string, or parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise QuestionError("text, or a list of parts, belongs here", where)
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "input_image":
            raise QuestionError("images can't be read: send text or JSON only", (*where, i, "type"))
        key = {"input_text": "text", "output_text": "text", "refusal": "refusal", "input_json": "data"}.get(str(kind))
        if key is None or part.get(key) is None:
            raise QuestionError(f"unknown or empty part {kind!r}", (*where, i))
        texts.append(text_of(part[key]))
    return "\n".join(texts)


def _question(given: Any, where: tuple[str | int, ...], number: int) -> Question:
    kind = read_type(given, _TYPES, where)
    name = given.get("name")
    if name is not None and not isinstance(name, str):
        raise QuestionError("a name is a string", (*where, "name"))
    instructions = _content(given.get("instructions"), (*where, "instructions"))
    key, options = _options(kind, given, where)
    try:
        # A question without a name gets one that no client would choose; the response leaves it out.
        return Question(_unnamed(number) if name is None else name, _TYPES[kind], instructions, options)
    except QuestionError as error:
        raise placed(error, where, key) from None


def _options(kind: str, given: Mapping[str, Any], where: tuple[str | int, ...]) -> tuple[str, tuple[Option, ...]]:
    """The key that holds a question's options, and the options."""
    if kind == "predicate":
        return "instructions", (Option(True, "Yes"), Option(False, "No"))
    key, field = ("choices", "value") if kind == "choice" else ("levels", "label")
    items = given.get(key)
    if not isinstance(items, list):
        raise QuestionError(f"a {kind} needs a list of {key}", (*where, key))
    options = []
    for i, item in enumerate(items):
        value = item.get(field) if isinstance(item, Mapping) else None
        if not isinstance(value, str | bool) or (kind == "score" and not isinstance(value, str)):
            raise QuestionError(f"a {field} is text" + " or a boolean" * (kind == "choice"), (*where, key, i, field))
        text = text_of(item.get("description"))
        options.append(Option(i if kind == "score" else value, label_of(value), text))
    return key, tuple(options)


def _unnamed(number: int) -> str:
    return f"\x00{number}"


def write(decisions: Decisions, model: str) -> Json:
    """The response's body."""
    usage = decisions.usage
    body: Json = {
        "model": model,
        "answers": [write_answer(answer) for answer in decisions.answers],
        "usage": {
            "input_tokens": usage.input_tokens,
            "input_tokens_details": {
                "cache_write_tokens": usage.input_tokens - usage.cached_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            "output_tokens": usage.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.input_tokens + usage.output_tokens,
        },
    }
    if decisions.joint:
        body["joint"] = [write_joint(joint, write_answer) for joint in decisions.joint]
    return body


def write_answer(answer: Answer) -> Json:
    """One answer, as its question's type has it."""
    question = answer.question
    name = None if question.name.startswith("\x00") else question.name
    if question.type == "noul":
        return {"type": "predicate", "name": name, "probability": answer.yes}
    pairs = list(zip(question.options, answer.probabilities, strict=True))
    if question.type == "choice":
        return {
            "type": "choice",
            "name": name,
            "choice": answer.value,
            "confidence": answer.confidence,
            "probabilities": [{"value": option.value, "probability": p} for option, p in pairs],
        }
    return {
        "type": "score",
        "name": name,
        "score": answer.score,
        "confidence": answer.confidence,
        "probabilities": [{"label": option.label, "value": option.value, "probability": p} for option, p in pairs],
    }


def error(fault: UsageError) -> Json:
    """The body of a 400: what is wrong, and where, as OpenAI's wire has it."""
    where = fault.where if isinstance(fault, QuestionError) else ("input",)
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in where).lstrip(".")
    return {"error": {"message": str(fault), "type": "invalid_request_error", "param": path or None, "code": None}}
