"""Invented tools, no two alike: verbs and nouns of all trades, and formulas, with parameters that fit."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from .parameters import Parameter, number, numbers, parameter
from .words import pick


@dataclass(frozen=True)
class InventedTool:
    """A tool that exists only here. `task`: what it does, as someone asks for it. `required`: names of parameters."""

    name: str
    task: str
    description: str
    parameters: tuple[Parameter, ...]
    required: frozenset[str]

    def as_openai(self) -> dict[str, Any]:
        """As chat APIs describe it."""
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {parameter.name: parameter.schema for parameter in self.parameters},
            "required": [parameter.name for parameter in self.parameters if parameter.name in self.required],
        }
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


def invent(chance: random.Random) -> InventedTool:
    """A new tool."""
    return _formula(chance) if chance.random() < 0.3 else _trade(chance)


def tool_set(chance: random.Random, count: int) -> list[InventedTool]:
    """Tools whose names and nouns differ, so that it is plain which one a request needs."""
    found: list[InventedTool] = []
    while len(found) < count:
        tool = invent(chance)
        if all(tool.name != other.name and tool.task.split()[-1] != other.task.split()[-1] for other in found):
            found.append(tool)
    return found


def _trade(chance: random.Random) -> InventedTool:
    verb, noun = pick(chance, "verbs"), pick(chance, "nouns")
    does, thing = verb.replace("_", " "), noun.replace("_", " ")
    wanted: dict[str, Parameter] = {}
    for _ in range(chance.choices([0, 1, 2, 3, 4], [1, 5, 6, 4, 2])[0]):
        one = parameter(chance)
        wanted.setdefault(one.name, one)
    optional = {name for name in wanted if chance.random() < 0.3}
    done = does.capitalize()
    described = chance.choice(
        [f"{done} a {thing}.", f"{done} the {thing} of a user.", f"Use this to {does} a {thing}.",
         f"{done} {thing}s in the system.", f"{done} a {thing}; nothing else is changed."]
    )  # fmt: skip
    return InventedTool(
        _named(chance, verb, noun), f"{does} {chance.choice(['the', 'a', 'my', 'our'])} {thing}", described,
        tuple(wanted.values()), frozenset(wanted) - optional,
    )  # fmt: skip


def _formula(chance: random.Random) -> InventedTool:
    formula = pick(chance, "formulas")
    names: list[str] = formula["numbers"]
    what = formula["what"].format(shape=chance.choice(formula["shapes"]))
    parts = [numbers(name) if name == "numbers" else number(name, chance) for name in names]
    required = frozenset(names)
    if chance.random() < 0.35:
        parts.append(
            Parameter(
                chance.choice(["precision", "decimals", "digits"]),
                {"type": "integer", "description": "Digits after the point", "default": 2},
                lambda chance: _twice(chance.randint(0, 6)),
                ("to {} decimals", "rounded to {} digits", "with {name} {}"),
            )
        )
    verb = chance.choice(["calculate", "compute", "find", "get"])
    stem = what.replace(" of a ", "_of_").replace(" of two ", "_of_").replace(" of ", "_").replace(" on a ", "_on_")
    name = _named(chance, verb, stem.replace(" by a ", "_by_").replace(" a ", "_").replace(" ", "_"))
    return InventedTool(name, f"{verb} the {what}", f"{verb.capitalize()} the {what}.", tuple(parts), required)


def _twice(value: int) -> tuple[Any, str]:
    return value, str(value)


def _named(chance: random.Random, verb: str, noun: str) -> str:
    """A name in one of the styles that programs have."""
    style = chance.randrange(7)
    camel = "".join(part.capitalize() for part in f"{verb}_{noun}".split("_"))
    styles = [f"{verb}_{noun}", f"{verb}_{noun}", f"{noun}_{verb}", f"{noun}.{verb}", camel[0].lower() + camel[1:]]
    styles += [
        f"{verb}_{noun}_v{chance.randint(1, 3)}",
        f"{chance.choice(['app', 'math', 'home', 'ops'])}.{verb}_{noun}",
    ]
    return styles[style]
