"""Groups: the chain rule over what is legal, held to plain forward passes over everything written out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import trifolium
from trifolium import LM, Group, Question
from trifolium.decide import Inquiry, JointAnswer
from trifolium.decide import joint as jointly
from trifolium.decide.constraints import allowed
from trifolium.decide.inquiry import check_group
from trifolium.model import RequestRows, Rows

STATE = "Buy now!"


def chance(lm: LM, before: list[int], tokens: tuple[int, ...]) -> float:
    """p of tokens after others, by the chain rule: one plain causal pass over all of them."""
    everything = [*before, *tokens]
    with torch.inference_mode():
        rows = Rows.build([RequestRows(lm.model.new_state(), everything)], tile=lm.model.tiled)
        hidden = lm.model.rows(rows)[len(before) - 1 : len(everything) - 1]
        logs = torch.log_softmax(lm.model.logits(hidden).double(), -1)
    return math.exp(sum(float(log[token]) for log, token in zip(logs, tokens, strict=True)))


def brute_force(lm: LM, asked: list[Question], turn: int = 0) -> dict[tuple[int, ...], float]:
    """p of every assignment, legal or not, up to a factor: each one written out."""
    sheet = lm._writer.sheet(asked, turn)
    prompt = [*lm._writer.state(STATE), *sheet.tokens]
    found = {}
    for assignment in itertools.product(*(range(len(question.options)) for question in asked)):
        labels = [sheet.labels[i][assignment[place]] for i, place in enumerate(sheet.places)]
        found[assignment] = chance(lm, prompt, tuple(token for label in labels for token in label))
    return found


def joint_of(lm: LM, asked: list[Question], group: Group, temperatures=None) -> JointAnswer:
    return lm.answer(Inquiry.of(STATE, asked, [group]), temperatures or {}).joint[0]


CASES = [
    ((0, 1), []),
    ((0, 2, 4), [{"if": {"spam": True}, "then": {"urgency": [0, 1]}}]),
    ((1, 0, 3), [{"at_most": 1, "of": [{"spam": True}, {"refund": True}, {"team": "true"}]}]),
    ((4, 1), [{"not": {"urgency": 2, "refund": False}}]),
    ((2, 0, 1), [{"exactly": 1, "of": [{"spam": True}, {"refund": True}, {"tone": "calm"}]}]),
]


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize(("places", "constraints"), CASES)
def test_it_equals_brute_force(load_tiny, questions, dtype, places, constraints):
    lm = load_tiny(dtype)
    asked = [questions[i] for i in places]
    names = [question.name for question in asked]
    for orders in (1, 2):
        group = Group(names, constraints, orders=orders)
        legal = check_group(group, asked)
        expected: dict[tuple[int, ...], float] = {}
        for turn in range(orders):
            weights = {a: w for a, w in brute_force(lm, asked, turn).items() if allowed(legal.constraints, a)}
            total = math.fsum(weights.values())
            for assignment, weight in weights.items():
                expected[assignment] = expected.get(assignment, 0.0) + weight / total / orders
        joint = joint_of(lm, asked, group)
        assert dict(joint.items()) == pytest.approx(expected, abs=1e-9)
        assert joint.unseen_mass == 0.0 and math.fsum(joint.probabilities) == pytest.approx(1.0)
        assert len(joint.assignments) < math.prod(len(q.options) for q in asked) or not constraints


@pytest.mark.parametrize("model", ["nano", pytest.param("smollm2-135m", marks=pytest.mark.real)])
def test_dependent_questions_share_information(model):
    """A product of marginals, however it is normalised, has none."""
    lm = trifolium.load(model, adapter=None, dtype="int8")
    asked = [Question.noul("ad", "Is it advertising?"), Question.noul("sells", "Does it want to sell something?")]
    joint = joint_of(lm, asked, Group(["ad", "sells"], orders=1))
    first, second = (answer.probabilities for answer in joint.marginals())
    information = math.fsum(p * math.log(p / (first[a] * second[b])) for (a, b), p in joint.items())
    assert information > (0.01 if model != "nano" else 3e-5)


def test_marginals_and_conditionals_agree_with_the_joint(load_tiny, questions):
    lm = load_tiny()
    asked = [questions[0], questions[3], questions[4]]
    group = Group(["spam", "team", "urgency"], given={"team": ["help", True], "spam": False})
    decisions = lm.answer(Inquiry.of(STATE, [questions[2], *asked], [group]), {})
    joint = decisions.joint[0]
    for i, question in enumerate(asked):
        assert decisions[question.name].probabilities == pytest.approx(
            [math.fsum(p for a, p in joint.items() if a[i] == option) for option in range(len(question.options))]
        )
    held = {a: p for a, p in joint.items() if a[0] == 1 and a[1] in (1, 2)}
    total = math.fsum(held.values())
    for i, answer in enumerate(joint.conditionals()):
        expected = [math.fsum(p for a, p in held.items() if a[i] == o) / total for o in range(len(asked[i].options))]
        assert answer.probabilities == pytest.approx(expected)
    assert decisions["tone"].probabilities == lm.decide(STATE, [questions[2]])["tone"].probabilities
    best = max(joint.items(), key=lambda item: item[1])
    assert joint.best.probability == best[1] == joint.top[0].probability
    assert joint.best.answers == {q.name: q.options[o].value for q, o in zip(asked, best[0], strict=True)}
    assert len(joint.top) == 5 and joint.top == tuple(sorted(joint.top, key=lambda one: -one.probability))


def test_a_group_of_one_is_the_question_by_itself(load_tiny, questions):
    lm = load_tiny()
    for question in questions:
        joint = joint_of(lm, [question], Group([question.name], orders=1))
        alone = lm.decide(STATE, [question]).answers[0]
        assert joint.marginals()[0].probabilities == pytest.approx(alone.probabilities)


def test_temperatures_act_on_every_place(load_tiny, questions):
    """By definition: each place's mass times the cooled softmax over its options, after what stands before it."""
    lm = load_tiny()
    asked = [questions[0], questions[4]]
    sheet = lm._writer.sheet(asked)
    prompt = [*lm._writer.state(STATE), *sheet.tokens]

    def cooled(before: tuple[int, ...], place: int, temperature: float) -> list[float]:
        plain = [chance(lm, [*prompt, *before], label) for label in sheet.labels[place]]
        powers = [p ** (1.0 / temperature) for p in plain]
        return [sum(plain) * power / sum(powers) for power in powers]

    first = cooled((), 0, 2.5)
    second = [cooled(label, 1, 0.6) for label in sheet.labels[0]]
    weights = {(a, b): first[a] * second[a][b] for a in range(2) for b in range(3)}
    total = sum(weights.values())
    joint = joint_of(lm, asked, Group(["spam", "urgency"], orders=1), {"noul": 2.5, "score": 0.6})
    assert dict(joint.items()) == pytest.approx({a: weight / total for a, weight in weights.items()})


@pytest.mark.parametrize("heat", [{}, {"choice": 1.7}])
def test_a_search_that_sees_all_is_exact(load_tiny, monkeypatch, heat):
    """The same group, once counted out and once too large to be."""
    lm = load_tiny()
    asked = [Question.choice(name, f"Which {name}?", ["x", "y", "z"]) for name in "abc"]
    constraints = [{"if": {"a": "x"}, "then": {"b": "y"}}, {"at_most": 1, "of": [{"b": "z"}, {"c": "z"}]}]
    group = Group(["a", "b", "c"], constraints, orders=1)
    exact = dict(joint_of(lm, asked, group, heat).items())
    monkeypatch.setattr("trifolium.decide.constraints.MAX_EXACT", 3)
    monkeypatch.setattr("trifolium.decide.inquiry.assignments", lambda q, c, most=3: None)
    monkeypatch.setattr(jointly, "MAX_UNSEEN", 0.0)
    monkeypatch.setattr(jointly, "EXPANDED_AT_ONCE", 3)
    found = joint_of(lm, asked, group, heat)
    assert dict(found.items()) == pytest.approx(exact) and found.unseen_mass == pytest.approx(0.0)


def test_unseen_mass_bounds_what_a_short_search_misses(load_tiny, monkeypatch):
    lm = load_tiny()
    asked = [Question.choice(name, f"Which {name}?", ["x", "y", "z"]) for name in "abcd"]
    group = Group(list("abcd"), orders=1)
    exact = dict(joint_of(lm, asked, group).items())
    monkeypatch.setattr("trifolium.decide.inquiry.assignments", lambda q, c, most=3: None)
    monkeypatch.setattr(jointly, "EXPANDED_AT_ONCE", 2)
    for expanded in (8, 16, 30):
        monkeypatch.setattr(jointly, "MAX_EXPANDED", expanded)
        found = joint_of(lm, asked, group)
        seen = math.fsum(exact[a] for a in found.assignments)
        assert 0 < len(found.assignments) < len(exact)
        assert 1.0 - seen <= found.unseen_mass < 1.0
        assert math.fsum(found.probabilities) + found.unseen_mass == pytest.approx(1.0)


def test_a_large_group_is_searched_within_bounds(load_tiny):
    lm = load_tiny()
    asked = [Question.choice(f"q{i}", "Which?", ["w", "x", "y", "z"]) for i in range(8)]
    group = Group([q.name for q in asked], [{"exactly": 1, "of": [{"q6": "w"}, {"q7": "w"}]}])
    joint = joint_of(lm, asked, group)
    assert joint.assignments and 0.0 < joint.unseen_mass < 1.0
    assert all((a[6] == 0) != (a[7] == 0) for a in joint.assignments)
    assert math.fsum(joint.marginals()[0].probabilities) == pytest.approx(1.0)
