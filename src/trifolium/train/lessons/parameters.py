"""Parameters of invented tools: what they are called, what they may be, and how people say their values."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .words import WORDS, pick

Value = tuple[Any, str]
"""A value, and the words that say it."""


@dataclass(frozen=True)
class Parameter:
    """One parameter. `phrases`: ways to say its value, with `{}` for the words of the value."""

    name: str
    schema: dict[str, Any]
    draw: Callable[[random.Random], Value]
    phrases: tuple[str, ...]

    @property
    def human(self) -> str:
        """Its name as people say it."""
        return self.name.replace("_", " ")


def parameter(chance: random.Random) -> Parameter:
    """Any parameter."""
    return chance.choice(KINDS)(chance)


def number(name: str, chance: random.Random) -> Parameter:
    """A number of this name, whole or not."""
    whole = chance.random() < 0.5

    def draw(chance: random.Random) -> Value:
        value: Any = chance.randint(1, 500) if whole or chance.random() < 0.3 else round(chance.uniform(0.1, 200), 2)
        return value, f"{value:,}" if chance.random() < 0.05 and isinstance(value, int) else str(value)

    about = chance.choice([f"The {name}", f"{name.capitalize()} of it", f"{name.capitalize()}, as a number"])
    schema = {"type": "integer" if whole else "number", "description": about}
    return Parameter(
        name, schema, draw, ("{name} {}", "a {name} of {}", "{name} = {}", "{} as the {name}", "{name} of {}")
    )


def numbers(name: str) -> Parameter:
    """A list of numbers."""

    def draw(chance: random.Random) -> Value:
        values = [chance.randint(1, 99) for _ in range(chance.randint(2, 6))]
        return values, listed([str(value) for value in values])

    return Parameter(name, {"type": "array", "items": {"type": "integer"}}, draw, ("{}", "the {name} {}", "[{}]"))


def listed(parts: list[str]) -> str:
    """Several words as people list them."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def text(names: str, about: str, draw: Callable[[random.Random], str], *phrases: str) -> Callable[..., Parameter]:
    """A kind of text parameter."""

    def make(chance: random.Random) -> Parameter:
        name = chance.choice(names.split())

        def both(chance: random.Random) -> Value:
            value = draw(chance)
            return value, value

        return Parameter(name, {"type": "string", "description": about}, both, phrases)

    return make


def person(chance: random.Random) -> str:
    return f"{pick(chance, 'first')} {pick(chance, 'last')}" if chance.random() < 0.6 else pick(chance, "first")


def mail(chance: random.Random) -> str:
    return f"{pick(chance, 'first')}.{pick(chance, 'last')}@{pick(chance, 'mail')}".lower()


def code(chance: random.Random) -> str:
    return f"{''.join(chance.choices('ABCDEFGHKLMNPRSTUVWXYZ', k=chance.randint(1, 3)))}-{chance.randint(10, 99999)}"


def day(chance: random.Random) -> str:
    return f"{chance.randint(2023, 2028)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}"


def clock(chance: random.Random) -> str:
    return f"{chance.randint(0, 23):02}:{chance.choice(['00', '15', '30', '45'])}"


def _count(chance: random.Random) -> Parameter:
    name = chance.choice(
        ["count", "quantity", "limit", "seats", "guests", "days", "copies", "pages", "minutes", "max_results"]
    )
    low, high = (1, 12) if name in ("seats", "guests", "days") else (1, 60)

    def draw(chance: random.Random) -> Value:
        value = chance.randint(low, high)
        return value, str(value)

    schema: dict[str, Any] = {"type": "integer", "description": f"Number of {name.removeprefix('max_')}"}
    if chance.random() < 0.3:
        schema |= {"minimum": low, "maximum": 2 * high}
    unit = name.removeprefix("max_")
    return Parameter(name, schema, draw, (f"{{}} {unit}", "{name} {}", f"with {{}} {unit}", "{name}: {}"))


def _amount(chance: random.Random) -> Parameter:
    return number(
        chance.choice(["amount", "price", "budget", "weight", "height", "distance", "temperature", "speed"]), chance
    )


def _choice(chance: random.Random) -> Parameter:
    options = chance.choice(
        [*WORDS["states"], tuple(chance.sample(WORDS["colours"], 3)), tuple(chance.sample(WORDS["currencies"], 4))]
    )
    name = chance.choice(["mode", "kind", "type", "status", "size", "format", "unit", "option", "priority", "category"])
    schema = {"type": "string", "enum": list(options), "description": f"Which {name}"}

    def draw(chance: random.Random) -> Value:
        value = chance.choice(options)
        return value, value

    return Parameter(name, schema, draw, ("{name} {}", "as {}", "in {}", "{name}: {}", "the {} {name}"))


def _flag(chance: random.Random) -> Parameter:
    name = chance.choice(
        ["notify", "urgent", "recursive", "overwrite", "include_drafts", "gift_wrap", "dry_run", "shared"]
    )
    human = name.replace("_", " ")

    def draw(chance: random.Random) -> Value:
        value = chance.random() < 0.6
        return value, f"with {human} on" if value else f"with {human} off"

    return Parameter(name, {"type": "boolean", "description": f"Whether {human} is wanted"}, draw, ("{}",))


def _tags(chance: random.Random) -> Parameter:
    name = chance.choice(["tags", "items", "names", "cities", "topics"])
    source = {
        "tags": WORDS["colours"],
        "items": WORDS["things"],
        "names": WORDS["first"],
        "cities": WORDS["cities"],
    }.get(name, WORDS["topics"])

    def draw(chance: random.Random) -> Value:
        values = chance.sample(source, chance.randint(1, 3))
        return values, listed(values)

    schema = {"type": "array", "items": {"type": "string"}, "description": f"The {name}"}
    return Parameter(name, schema, draw, ("{name} {}", "with the {name} {}", "for {}", "{name}: {}"))


def _address(chance: random.Random) -> Parameter:
    name = chance.choice(["address", "destination", "origin"])
    properties = {"street": {"type": "string"}, "number": {"type": "integer"}, "city": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "description": f"The {name}"}

    def draw(chance: random.Random) -> Value:
        street, house = f"{pick(chance, 'last')} Street", chance.randint(1, 220)
        city = pick(chance, "cities")
        return {"street": street, "number": house, "city": city}, f"{house} {street}, {city}"

    return Parameter(name, schema, draw, ("to {}", "at {}", "{name} {}", "{name}: {}"))


KINDS: list[Callable[[random.Random], Parameter]] = [
    text("city location place town", "Name of a city", lambda c: pick(c, "cities"), "in {}", "for {}", "{name} {}"),
    text("country region", "Name of a country", lambda c: pick(c, "countries"), "in {}", "for {}", "{name} {}"),
    text("name person owner customer author", "Name of a person", person, "for {}", "of {}", "{name} {}"),
    text("email recipient to contact", "Mail address", mail, "to {}", "for {}", "{name} {}"),
    text("id code number reference ticket_id order_id", "Identifier", code, "{}", "{name} {}", "with {name} {}", "#{}"),
    text("date day start_date due_date", "Date as YYYY-MM-DD", day, "on {}", "for {}", "{name} {}", "dated {}"),
    text("time at start_time", "Time as HH:MM", clock, "at {}", "{name} {}"),
    text("query topic subject keyword", "What to look for", lambda c: pick(c, "topics"), "about {}", "on {}", "for {}"),
    text("message text body note", "The text", lambda c: pick(c, "messages"), 'saying "{}"', 'text "{}"', "{name}: {}"),
    text("product item thing", "A thing", lambda c: pick(c, "things"), "for {}", "of {}", "{name} {}"),
    text("language target_language", "A language", lambda c: pick(c, "languages"), "in {}", "into {}", "{name} {}"),
    text("currency", "Currency code", lambda c: pick(c, "currencies"), "in {}", "{name} {}"),
    _count, _count, _amount, _amount, _choice, _choice, _flag, _tags, _address,
]  # fmt: skip
