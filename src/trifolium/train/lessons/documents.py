"""Texts with known facts: extraction to a schema, and typed decisions whose answers don't contradict each other."""

from __future__ import annotations

import json
import random
from typing import Any

from ...decide import Question
from ...decide.sheet import label_names, turned, written
from .parameters import code, day, mail, person
from .words import WORDS, pick


def extraction(chance: random.Random) -> dict[str, Any]:
    """A text, and what it says as JSON."""
    facts, text = chance.choice(RECORDS)(chance)
    kept = {name: value for name, value in facts.items() if chance.random() < 0.8} or facts
    schema = {"type": "object", "properties": {k: {"type": _type(v)} for k, v in kept.items()}, "required": list(kept)}
    asked = pick(chance, "forms").replace("{fields}", ", ".join(kept)).replace("{}", text)
    if chance.random() < 0.5:
        asked += f"\n\nJSON Schema: {json.dumps(schema)}"
    answer = json.dumps(kept, ensure_ascii=False, separators=(",", ":") if chance.random() < 0.7 else None)
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return {"messages": messages, "skill": "extraction"}


def _type(value: Any) -> str:
    return {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}.get(type(value), "string")


def _order(chance: random.Random) -> tuple[dict[str, Any], str]:
    name, city, due = person(chance), pick(chance, "cities"), day(chance)
    items = [
        {"count": chance.randint(1, 40), "item": thing}
        for thing in chance.sample(WORDS["things"], chance.randint(1, 3))
    ]
    listed = ", ".join(f"{one['count']} {one['item']}" for one in items)
    text = chance.choice(
        [f"{name} from {city} orders {listed}, to be delivered by {due}.",
         f"Order: {listed}. Customer {name}, {city}. Due {due}.",
         f"Hello, this is {name}. Please send {listed} to {city} before {due}."]
    )  # fmt: skip
    return {"customer": name, "city": city, "due": due, "items": items}, text


def _contact(chance: random.Random) -> tuple[dict[str, Any], str]:
    name, age, address = person(chance), chance.randint(18, 90), mail(chance)
    job, city, married = pick(chance, "jobs"), pick(chance, "cities"), chance.random() < 0.5
    text = chance.choice(
        [f"{name}, {age}, is a {job} in {city}{', married' if married else ', single'}. Write to {address}.",
         f"Meet {name}: {age} years old, {job}, in {city}, {'married' if married else 'not married'}, mail {address}."]
    )  # fmt: skip
    return {"name": name, "age": age, "job": job, "city": city, "married": married, "email": address}, text


def _event(chance: random.Random) -> tuple[dict[str, Any], str]:
    topic, city, when = pick(chance, "topics"), pick(chance, "cities"), day(chance)
    price, seats, number = chance.choice([0, 5, 12, 25.5, 40]), chance.randint(10, 400), code(chance)
    cost = "free" if not price else f"{price} euros"
    text = chance.choice(
        [f"Talk on {topic} in {city} on {when}, {seats} seats, entry {cost}, booking code {number}.",
         f"On {when} {city} hosts an evening about {topic}. Entry: {cost}. There are {seats} seats (code {number})."]
    )  # fmt: skip
    return {"topic": topic, "city": city, "date": when, "price": price, "seats": seats, "code": number}, text


RECORDS = (_order, _contact, _event)


def decisions(chance: random.Random) -> dict[str, Any]:
    """Typed questions about a text, on the sheet that `trifolium decide` uses: one alone, or several together."""
    facts, text = _letter(chance)
    asked = [make(chance, facts) for make in chance.sample(QUESTIONS, chance.choice([1, 1, 2, 3, 4]))]
    questions = [question for question, _ in asked]
    turn = chance.randrange(4)
    sheet, lead = written(questions, turn)
    letters = []
    for place in turned(len(questions), turn):
        options = turned(len(questions[place].options), turn)
        letters.append(label_names(len(options))[options.index(asked[place][1])])
    messages = [
        {"role": "user", "content": text + sheet}, {"role": "assistant", "content": f"{lead} {' '.join(letters)}"},
    ]  # fmt: skip
    return {"messages": messages, "skill": "decisions" if len(questions) == 1 else "decisions: joint"}


def _letter(chance: random.Random) -> tuple[dict[str, Any], str]:
    """A message to a shop, and what is true of it."""
    sender = pick(chance, "first")
    if chance.random() < 0.15:
        facts: dict[str, Any] = {
            "spam": True,
            "subject": "spam",
            "mood": 0,
            "urgent": False,
            "refund": False,
            "sender": sender,
        }
        return facts, f"{pick(chance, 'stamps')} {pick(chance, 'spam')} {sender}".strip()
    subject = chance.choice(list(WORDS["subjects"]))
    mood = 1 if subject == "praise" else chance.choice([-1, -1, 0]) if subject != "question" else 0
    urgent = subject != "praise" and chance.random() < 0.4
    refund = subject in ("billing", "delivery") and chance.random() < 0.4
    line = chance.choice(WORDS["subjects"][subject]).format(
        thing=pick(chance, "things"),
        count=chance.randint(2, 90),
        city=pick(chance, "cities"),
        colour=pick(chance, "colours"),
    )
    parts = [
        line[0].upper() + line[1:] + ("?" if subject == "question" else "."),
        chance.choice(WORDS["moods"][str(mood)]),
    ]
    if refund:
        parts.append(pick(chance, "refund"))
    if urgent or chance.random() < 0.3:
        parts.append(pick(chance, "urgent" if urgent else "calm"))
    head, *tail = parts
    chance.shuffle(tail)
    text = " ".join(part for part in [pick(chance, "stamps"), head, *tail, sender] if part)
    return {"spam": False, "subject": subject, "mood": mood, "urgent": urgent, "refund": refund, "sender": sender}, text


Asked = tuple[Question, int]
"""A question and the index of the right option."""


def _noul(name: str, fact: bool, asked: str) -> Asked:
    return Question.noul(name, asked), 0 if fact else 1


def _is_urgent(chance: random.Random, facts: dict[str, Any]) -> Asked:
    return _noul("urgent", facts["urgent"], chance.choice(WORDS["asked"]["urgent"]))


def _is_spam(chance: random.Random, facts: dict[str, Any]) -> Asked:
    return _noul("spam", facts["spam"], chance.choice(WORDS["asked"]["spam"]))


def _wants_refund(chance: random.Random, facts: dict[str, Any]) -> Asked:
    return _noul("refund", facts["refund"], chance.choice(WORDS["asked"]["refund"]))


def _complains(chance: random.Random, facts: dict[str, Any]) -> Asked:
    bad = facts["subject"] in ("billing", "delivery", "technical")
    return _noul("complaint", bad, chance.choice(WORDS["asked"]["complaint"]))


def _signed(chance: random.Random, facts: dict[str, Any]) -> Asked:
    name = facts["sender"] if chance.random() < 0.5 else pick(chance, "first")
    return _noul("signed", name == facts["sender"], chance.choice(WORDS["asked"]["signed"]).format(name))


def _subject(chance: random.Random, facts: dict[str, Any]) -> Asked:
    about: dict[str, str] = WORDS["about"]
    others = [name for name in about if name != facts["subject"]]
    names = [facts["subject"], *chance.sample(others, chance.randint(1, len(others)))]
    chance.shuffle(names)
    options = {name: about[name] if chance.random() < 0.6 else "" for name in names}
    asked = chance.choice(WORDS["asked"]["subject"])
    return Question.choice("subject", asked, options), names.index(facts["subject"])


def _mood(chance: random.Random, facts: dict[str, Any]) -> Asked:
    asked = chance.choice(WORDS["asked"]["mood"])
    return Question.score("mood", asked, pick(chance, "levels")), facts["mood"] + 1


QUESTIONS = (_is_urgent, _is_spam, _wants_refund, _complains, _signed, _subject, _mood)
