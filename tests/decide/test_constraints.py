"""Constraints: what is legal, that beginnings are judged safely, and what is refused before anything runs."""

from __future__ import annotations

import itertools
import random

import pytest

from trifolium import Group, Question
from trifolium.decide import Inquiry
from trifolium.decide.constraints import allowed, assignments, parse_constraint
from trifolium.errors import QuestionError

A, B = Question.noul("a", "A?"), Question.noul("b", "B?")
LOW, HIGH = (Question.score(name, "How?", ["0", "1", "2"]) for name in ("low", "high"))
KIND = Question.choice("kind", "Which?", ["x", "y", True, "true"])
ALL = [A, B, LOW, HIGH, KIND]

# By option index: 0 is yes, and the scores are what they are.
RULES = {
    "if": (
        {"if": {"a": True}, "then": {"b": False, "kind": ["x", True]}},
        lambda a, b, low, high, kind: a == 1 or (b == 1 and kind in (0, 2)),
    ),
    "not": ({"not": {"a": True, "low": 1}}, lambda a, b, low, high, kind: a == 1 or low != 1),
    "exactly": (
        {"exactly": 1, "of": [{"a": True}, {"b": True}, {"kind": "true"}]},
        lambda a, b, low, high, kind: (a == 0) + (b == 0) + (kind == 3) == 1,
    ),
    "at_most": (
        {"at_most": 1, "of": [{"a": True}, {"b": True}]},
        lambda a, b, low, high, kind: (a == 0) + (b == 0) <= 1,
    ),
    "at_least": (
        {"at_least": 2, "of": [{"a": True}, {"b": True}, {"low": 0}]},
        lambda a, b, low, high, kind: (a == 0) + (b == 0) + (low == 0) >= 2,
    ),
    "order": ({"order": ["low", "high"]}, lambda a, b, low, high, kind: low <= high),
}


@pytest.mark.parametrize("name", RULES)
def test_legal_assignments_are_those_of_the_rule(name):
    given, rule = RULES[name]
    constraint = parse_constraint(given, ALL)
    everything = list(itertools.product(range(2), range(2), range(3), range(3), range(4)))
    expected = [a for a in everything if rule(*a)]
    assert assignments(ALL, [constraint]) == expected
    assert 0 < len(expected) < len(everything)


def test_beginnings_that_can_still_become_legal_are_allowed():
    """Never refused too early; whole assignments are judged exactly."""
    rng = random.Random(0)
    constraints = [parse_constraint(given, ALL) for given, _ in RULES.values()]
    legal = assignments(ALL, constraints)
    assert legal
    for _ in range(300):
        whole = rng.choice(legal)
        partial = [option if rng.random() < 0.5 else None for option in whole]
        assert allowed(constraints, partial)


def test_more_than_the_limit_is_not_listed():
    many = [Question.choice(f"q{i}", "?", list("abcdefgh")) for i in range(4)]
    assert len(assignments(many, [])) == 8**4 == 4096
    assert assignments([*many, A], []) is None


@pytest.mark.parametrize(
    ("constraints", "given", "where", "message"),
    [
        ([{"exactly": 2, "of": [{"a": True}, {"a": False}]}], {}, ("constraints",), "contradict"),
        ([{"if": {"a": True}, "then": {"b": True}}, {"not": {"b": True}}], {"a": True}, ("given",), "rule out"),
        ([{"if": {"a": True}}], {}, ("constraints", 0), "known are if/then"),
        ([{"if": {"a": True}, "then": {"c": True}}], {}, ("constraints", 0, "then", "c"), "no question of this group"),
        ([{"if": {"a": "true"}, "then": {"b": True}}], {}, ("constraints", 0, "if", "a"), "no option 'true'"),
        ([{"if": {"a": 1}, "then": {"b": True}}], {}, ("constraints", 0, "if", "a"), "no option 1"),
        ([{"not": {}}], {}, ("constraints", 0, "not"), "a condition is"),
        ([{"not": {"a": []}}], {}, ("constraints", 0, "not", "a"), "empty list"),
        ([{"at_most": 3, "of": [{"a": True}]}], {}, ("constraints", 0, "at_most"), "no number from 0 to 1"),
        ([{"at_most": True, "of": [{"a": True}]}], {}, ("constraints", 0, "at_most"), "no number"),
        ([{"at_most": 1, "of": [{"a": True}, 7]}], {}, ("constraints", 0, "of", 1), "a condition is"),
        ([{"at_most": 1, "of": []}], {}, ("constraints", 0, "of"), "list of conditions"),
        ([{"order": ["a", "b"]}], {}, ("constraints", 0, "order", 0), "no score question"),
        ([{"order": ["low"]}], {}, ("constraints", 0, "order"), "at least two"),
        ([[]], {}, ("constraints", 0), "an object"),
        ([], {"a": "yes"}, ("given", "a"), "no option 'yes'"),
    ],
)
def test_what_cannot_hold_is_refused(constraints, given, where, message):
    with pytest.raises(QuestionError, match=message) as caught:
        Inquiry.of("state", ALL, [Group(["a", "b", "low", "high"], constraints, given=given)])
    assert caught.value.where == ("joint", 0, *where)


@pytest.mark.parametrize(
    ("group", "where"),
    [
        (Group([]), ("questions",)),
        (Group(["a"] * 9), ("questions",)),
        (Group(["a", "nobody"]), ("questions", 1)),
        (Group(["a", "a"]), ("questions", 1)),
        (Group(["a"], top=0), ("top",)),
        (Group(["a"], orders=17), ("orders",)),
    ],
)
def test_groups_that_cannot_be(group, where):
    with pytest.raises(QuestionError) as caught:
        Inquiry.of("state", ALL, [group])
    assert caught.value.where == ("joint", 0, *where)


def test_a_question_is_in_one_group_only():
    with pytest.raises(QuestionError, match="'a' is in two groups"):
        Inquiry.of("state", ALL, [Group(["a", "b"]), Group(["a", "low"])])


def test_contradictions_among_many_options_are_found():
    """The search gives up before it takes long, and says so."""
    many = [Question.choice(f"q{i}", "?", [str(n) for n in range(255)]) for i in range(8)]
    conflict = [{"exactly": 1, "of": [{"q7": "1"}, {"q7": "2"}]}, {"not": {"q7": ["1", "2"]}}]
    with pytest.raises(QuestionError, match=r"turned up|contradict"):
        Inquiry.of("state", many, [Group([q.name for q in many], conflict)])
