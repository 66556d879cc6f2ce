"""Questions by themselves: read off the model's own log-probabilities, and blind to each other."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

import trifolium
from trifolium import LM, Question
from trifolium.decide import Inquiry, deliberate
from trifolium.errors import PromptError
from trifolium.model import RequestRows, Rows

STATE = "I was billed twice, please help."


def by_hand(lm: LM, state: str, question: Question) -> list[float]:
    """The option's probabilities from one plain pass, with the sheet's words written out here."""
    text = f"{state}\n\nQuestion: {question.instructions}\n"
    for letter, option in zip("ABCDEFGH", question.options, strict=False):
        text += f"{letter}. {option.label}" + (f": {option.description}" if option.description else "") + "\n"
    text += "Answer with the letter of the best option."
    prompt = [*lm.encode(text), *lm.tokenizer.encode("Answer: ")]
    with torch.inference_mode():
        rows = Rows.build([RequestRows(lm.model.new_state(), prompt)], tile=lm.model.tiled)
        logits = lm.model.logits(lm.model.rows(rows)[len(prompt) - 1 : len(prompt)])[0].double()
    letters = [lm.tokenizer.encode(letter)[0] for letter in "ABCDEFGH"[: len(question.options)]]
    return torch.softmax(logits[letters], 0).tolist()


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_an_answer_is_what_one_plain_pass_says(load_tiny, questions, dtype):
    lm = load_tiny(dtype)
    decisions = lm.decide(STATE, questions)
    assert [answer.question for answer in decisions.answers] == questions
    for answer in decisions.answers:
        assert answer.probabilities == pytest.approx(by_hand(lm, STATE, answer.question), abs=1e-9)
        assert math.fsum(answer.probabilities) == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", ["int8", "float32", "nano"])
def test_company_moves_no_answer(load_tiny, questions, dtype):
    """Exactly: alone, in any company and order, with and without what earlier requests left in the cache."""
    lm = trifolium.load("nano", dtype="int8") if dtype == "nano" else load_tiny(dtype)
    asked = questions[:3] if dtype == "nano" else questions
    alone = {}
    for question in asked:
        lm.engine.forget_prefixes()
        alone[question.name] = lm.decide(STATE, [question]).answers[0].probabilities
    rng = random.Random(1)
    for _ in range(3):
        company = [Question.choice(f"other{i}", "Other? " * rng.randint(1, 9), ["x", "y", "z"]) for i in range(3)]
        mixed = [*asked, *company]
        rng.shuffle(mixed)
        decisions = lm.decide(STATE, mixed)
        assert {name: decisions[name].probabilities for name in alone} == alone


def test_long_sheets_move_no_answer_either(load_tiny, questions):
    """Some are read as a part of the prompt; that is the question's own doing."""
    lm = load_tiny()
    long = Question.choice("long", "Which?", {f"option {i}": "because of this or that" for i in range(40)})
    alone = lm.decide(STATE, [long]).answers[0]
    together = lm.decide(STATE, [questions[0], long, questions[1]])
    assert together["long"].probabilities == alone.probabilities
    assert together["spam"].probabilities == lm.decide(STATE, [questions[0]]).answers[0].probabilities


def test_orders_are_averaged(load_tiny, questions):
    lm = load_tiny()
    tone = questions[2]
    turned = Question.choice("tone", tone.instructions, {"calm": "", "angry": "hostile"})
    first, second = (lm.decide(STATE, [one]).answers[0].probabilities for one in (tone, turned))
    assert first != pytest.approx(second[::-1])  # the order matters to the model
    averaged = lm.decide(STATE, [tone], orders=2).answers[0].probabilities
    assert averaged == pytest.approx([(a + b) / 2 for a, b in zip(first, second[::-1], strict=True)])
    assert lm.decide(STATE, [turned], orders=2).answers[0].probabilities == pytest.approx(averaged[::-1])
    assert lm.decide(STATE, [tone], orders=16).answers[0].probabilities == averaged  # two options have two orders


def test_lengthening_an_option_is_no_penalty_by_itself(load_tiny):
    """Only labels are scored, so the number of scored tokens is the same for every option."""
    lm = load_tiny()
    options = {"a": "short", "b": "very long indeed, " * 8}
    inquiry = Inquiry.of(STATE, [Question.choice("q", "Which?", options)])
    (request,) = next(deliberate(lm._writer, inquiry, {}))
    assert len({one.scored for one in request.continuations}) == 1
    many = Inquiry.of(STATE, [Question.choice("q", "Which?", [str(i) for i in range(255)])])
    (request,) = next(deliberate(lm._writer, many, {}))
    labels = [one.tokens[one.first :] for one in request.continuations]
    assert len(set(labels)) == 255
    assert not any(a != b and a == b[: len(a)] for a in labels for b in labels)


def test_the_state_is_computed_once(load_tiny, questions):
    lm = load_tiny()
    lm.engine.forget_prefixes()
    before = lm.engine.stats()
    state = STATE * 30
    decisions = lm.decide(state, questions)
    after = lm.engine.stats()
    sheets = sum(len(lm._writer.sheet([question]).tokens) for question in questions)
    # Every label is two tokens here, so a row more for each sheet.
    assert after.rows - before.rows == len(lm._writer.state(state)) + sheets + len(questions)
    assert decisions.usage.input_tokens == len(lm._writer.state(state)) + sheets
    assert lm.decide(state, questions).usage.cached_tokens >= len(lm._writer.state(state)) - 1


def test_four_hundred_questions_in_bounded_memory(load_tiny, monkeypatch):
    """No more than one state is held for all of them, and no pass is wider than its budget."""
    lm = load_tiny()
    most = widest = 0
    step = lm.engine.step

    def watched() -> bool:
        nonlocal most, widest
        before = lm.engine.stats().rows
        more = step()
        stats = lm.engine.stats()
        most, widest = max(most, stats.state_bytes), max(widest, stats.rows - before)
        return more

    monkeypatch.setattr(lm.engine, "step", watched)
    asked = [Question.noul(f"q{i}", f"Is it {i}?") for i in range(400)]
    decisions = lm.decide(STATE, asked)
    assert len(decisions.answers) == 400
    length = len(lm._writer.state(STATE)) + 200
    assert most <= lm.engine._size.at(2 * length)
    assert widest <= 256


def test_temperatures_flatten_by_type(load_tiny, questions):
    lm = load_tiny()
    inquiry = Inquiry.of(STATE, questions)
    plain, heated = lm.answer(inquiry, {}), lm.answer(inquiry, {"choice": 2.0})
    for a, b in zip(plain.answers, heated.answers, strict=True):
        if a.question.type == "choice":
            powers = [p**0.5 for p in a.probabilities]
            assert b.probabilities == pytest.approx([p / sum(powers) for p in powers])
        else:
            assert b.probabilities == a.probabilities


def test_a_state_that_is_empty_or_past_the_context_is_refused(load_tiny, questions):
    lm = load_tiny()
    with pytest.raises(PromptError, match="the state is empty"):
        lm.decide(" ", questions)
    with pytest.raises(PromptError, match="context of 6000"):
        lm.decide("word " * 1190, questions)
    with pytest.raises(PromptError, match="can't fit into the context"):
        lm.decide("word " * 1_000_000, questions)
    assert lm.engine.stats().running == 0


def test_objects_are_read_as_json(load_tiny, questions):
    lm = load_tiny()
    assert lm.decide({"a": [1, "é"]}, questions).answers == lm.decide('{"a": [1, "é"]}', questions).answers


@pytest.mark.real
def test_company_moves_no_answer_of_the_default_model(default_gguf: Path, questions):
    lm = trifolium.load(default_gguf, adapter=None, dtype="int8")
    alone = [lm.decide(STATE, [question]).answers[0].probabilities for question in questions]
    lm.engine.forget_prefixes()
    decisions = lm.decide(STATE, questions[::-1])
    assert [decisions[question.name].probabilities for question in questions] == alone
