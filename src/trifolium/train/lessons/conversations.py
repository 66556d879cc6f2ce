"""Conversations with tools: one call, several, none, a question back, and answers from results."""

from __future__ import annotations

import json
import random
from typing import Any

from .catalogue import InventedTool, invent, tool_set
from .parameters import Parameter, code, day
from .words import pick

Message = dict[str, Any]


class Told:
    """A request for one call: its words and its arguments."""

    def __init__(self, chance: random.Random, tool: InventedTool, missing: str | None = None) -> None:
        self.tool = tool
        self.arguments: dict[str, Any] = {}
        said = []
        for parameter in tool.parameters:
            given = parameter.name in tool.required or chance.random() < 0.4
            if parameter.name != missing and given:
                self.arguments[parameter.name], phrase = _said(chance, parameter)
                said.append(phrase)
        if chance.random() < 0.3:
            chance.shuffle(said)
        joint = chance.choice([" ", ", ", " and "]) if len(said) > 1 else " "
        self.words = f"{tool.task} {joint.join(said)}".strip()

    def call(self) -> dict[str, Any]:
        """As an assistant's message has it."""
        return {"type": "function", "function": {"name": self.tool.name, "arguments": self.arguments}}


def _said(chance: random.Random, parameter: Parameter) -> tuple[Any, str]:
    value, spoken = parameter.draw(chance)
    phrase = chance.choice(parameter.phrases).replace("{name}", parameter.human)
    return value, phrase.replace("{}", spoken)


def ask(chance: random.Random, what: str) -> str:
    """A request in someone's words, with a slip of the finger now and then."""
    form = str(pick(chance, "asks"))
    text = form.format(what)
    if form.startswith("{}") and chance.random() < 0.7:
        text = text[0].upper() + text[1:]
    return text


def turns(chance: random.Random) -> dict[str, Any]:
    """A conversation of a few turns over one set of tools."""
    tools = tool_set(chance, chance.choices([1, 2, 3, 4, 6, 8], [4, 4, 3, 2, 1, 1])[0])
    messages: list[Message] = []
    if chance.random() < 0.15:
        messages.append({"role": "system", "content": pick(chance, "systems")})
    kinds = chance.choices(
        ["one", "several", "none", "missing", "chat", "result"], [10, 4, 4, 3, 2, 4], k=chance.choice([1, 2, 3, 4])
    )
    for kind in kinds:
        messages += KINDS[kind](chance, tools)
    return {"messages": messages, "tools": [tool.as_openai() for tool in tools], "skill": f"tools: {kinds[-1]}"}


def _one(chance: random.Random, tools: list[InventedTool]) -> list[Message]:
    told = Told(chance, chance.choice(tools))
    return [_user(ask(chance, told.words)), _calls([told])]


def _several(chance: random.Random, tools: list[InventedTool]) -> list[Message]:
    count = chance.choice([2, 2, 2, 3, 4])
    same = chance.random() < 0.5
    if same:  # one task, several values
        tool = chance.choice(tools)
        asked = [Told(chance, tool) for _ in range(count)]
    else:
        asked = [Told(chance, chance.choice(tools)) for _ in range(count)]
    if same and chance.random() < 0.5:  # the task is said once
        parts = [asked[0].words, *(told.words.removeprefix(told.tool.task).strip() or told.words for told in asked[1:])]
    else:
        parts = [told.words for told in asked]
    said = pick(chance, "joints")
    return [_user(ask(chance, said.join(parts))), _calls(asked)]


def _none(chance: random.Random, tools: list[InventedTool]) -> list[Message]:
    if chance.random() < 0.4:
        question, answer = pick(chance, "facts")
        return [_user(question), {"role": "assistant", "content": answer}]
    while any((other := invent(chance)).task.split()[-1] == tool.task.split()[-1] for tool in tools):
        pass
    told = Told(chance, other)
    return [
        _user(ask(chance, told.words)),
        {"role": "assistant", "content": pick(chance, "no_tool").format(other.task)},
    ]


def _missing(chance: random.Random, tools: list[InventedTool]) -> list[Message]:
    able = [tool for tool in tools if tool.required]
    if not able:
        return _one(chance, tools)
    tool = chance.choice(able)
    name = chance.choice(sorted(tool.required))
    lost = next(parameter for parameter in tool.parameters if parameter.name == name)
    told = Told(chance, tool, missing=name)
    question = chance.choice(
        ["Which {} should I use?", "What is the {}?", "Please tell me the {}.", "I need the {} for that."]
    )
    messages = [_user(ask(chance, told.words)), {"role": "assistant", "content": question.format(lost.human)}]
    if chance.random() < 0.6:
        value, phrase = _said(chance, lost)
        told.arguments = {p.name: value if p.name == name else told.arguments[p.name]
                          for p in tool.parameters if p.name == name or p.name in told.arguments}  # fmt: skip
        messages += [_user(phrase[0].upper() + phrase[1:]), _calls([told])]
    return messages


def _chat(chance: random.Random, tools: list[InventedTool]) -> list[Message]:
    question, answer = pick(chance, "small_talk")
    return [_user(question), {"role": "assistant", "content": answer}]


def _result(chance: random.Random, tools: list[InventedTool]) -> list[Message]:
    told = Told(chance, chance.choice(tools))
    result, answer = _outcome(chance, told)
    return [
        _user(ask(chance, told.words)), _calls([told]), {"role": "tool", "content": json.dumps(result)},
        {"role": "assistant", "content": answer},
    ]  # fmt: skip


def _outcome(chance: random.Random, told: Told) -> tuple[dict[str, Any], str]:
    """What a tool says, and what an assistant makes of it."""
    if chance.random() < 0.2:
        fault = pick(chance, "faults")
        return {"error": fault}, f"That didn't work: {fault}."
    if "the" in told.tool.task.split() and told.tool.task.split()[0] in ("calculate", "compute", "find", "get"):
        value = round(chance.uniform(1, 900), 2)
        what = " ".join(told.tool.task.split()[2:])
        return {"result": value}, f"The {what} is {value}."
    field, value = chance.choice(
        [("id", code(chance)), ("status", "done"), ("total", chance.randint(1, 400)), ("due", day(chance)),
         ("city", pick(chance, "cities")), ("name", pick(chance, "first"))]
    )  # fmt: skip
    return {"ok": True, field: value}, chance.choice(
        [f"Done. The {field} is {value}.", f"It's done; {field}: {value}."]
    )


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _calls(asked: list[Told]) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": [told.call() for told in asked]}


KINDS = {"one": _one, "several": _several, "none": _none, "missing": _missing, "chat": _chat, "result": _result}
