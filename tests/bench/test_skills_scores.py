"""What counts as a right call: by hand-written answers in the shape of the leaderboard's."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def skills() -> ModuleType:
    folder = str(Path(__file__).parents[2] / "bench")
    sys.path.insert(0, folder)
    try:
        return import_module("skills")
    finally:
        sys.path.remove(folder)


ANSWER = [{"room.book": {"city": ["Ulm", "Ulm, Germany"], "beds": [2], "price": ["", 80.5], "tags": [["a b", "c"]]}}]


@pytest.mark.parametrize(
    ("values", "fine"),
    [
        ({"city": "ulm", "beds": 2, "tags": ["A-B", "c"]}, True),
        ({"city": "Ulm Germany", "beds": 2.0, "price": 80.5, "tags": ["a b", "c"]}, True),
        ({"city": "Bonn", "beds": 2, "tags": ["a b", "c"]}, False),
        ({"city": "Ulm", "beds": True, "tags": ["a b", "c"]}, False),
        ({"city": "Ulm", "beds": "2", "tags": ["a b", "c"]}, False),
        ({"city": "Ulm", "beds": 2, "tags": ["c", "a b"]}, False),
        ({"city": "Ulm", "tags": ["a b", "c"]}, False),
        ({"city": "Ulm", "beds": 2, "tags": ["a b", "c"], "more": 1}, False),
    ],
)
def test_one_call(skills, values, fine):
    assert skills.right([("room.book", values)], ANSWER) is fine
    assert not skills.right([("room_book", values)], ANSWER)


def test_several_calls_in_any_order_and_none(skills):
    answer = [{"f": {"x": [1]}}, {"f": {"x": [2]}}]
    assert skills.right([("f", {"x": 2}), ("f", {"x": 1})], answer)
    assert not skills.right([("f", {"x": 2}), ("f", {"x": 2})], answer)
    assert not skills.right([("f", {"x": 1})], answer)
    assert skills.right([], []) and not skills.right([("f", {})], [])


def test_objects_inside(skills):
    answer = [{"f": {"where": [{"street": ["Main"], "number": [1, ""]}]}}]
    assert skills.right([("f", {"where": {"street": "main"}})], answer)
    assert not skills.right([("f", {"where": {"street": "main", "number": 2}})], answer)


def test_schemas_become_json_schema(skills):
    rows = {"type": "array", "items": {"type": "tuple", "items": {"type": "integer"}}}
    given = {"type": "dict", "properties": {"x": {"type": "float", "default": 1.0}, "y": {"type": "any"}, "z": rows}}
    assert skills.schema_of(given) == {
        "type": "object",
        "properties": {
            "x": {"type": "number"},
            "y": {},
            "z": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        },
    }
