"""Answers that go in circles are ended, at the same place in every mode."""

from __future__ import annotations

import random

import pytest

from structured_engine import json_model, json_tokenizer
from trifolium.config import DecodeConfig, SamplingParams
from trifolium.constrain import regex
from trifolium.engine import Engine, Request
from trifolium.engine.repeats import LEAST, LONGEST, Repeats


def length_at_end(tokens, times):
    watch = Repeats(times)
    return next((i for i, token in enumerate(tokens, 1) if watch.push(token)), None)


@pytest.mark.parametrize("period", [1, 2, 3, 16, 17, 100, LONGEST])
@pytest.mark.parametrize("times", [2, 3, 6])
def test_a_unit_is_found_when_it_stands_there_often_enough(period, times):
    unit = [i * i + 7 for i in range(period)]
    before = [10**6 + i for i in range(37)]
    found = length_at_end(before + unit * (times + LEAST), times)
    assert found == len(before) + max(period * times, LEAST)


def test_brute_force():
    chance = random.Random(0)

    def circles(tokens, times):
        for period in range(1, LONGEST + 1):
            need = max(period * times, LEAST)
            end = tokens[-need:]
            if len(end) == need and all(end[i] == end[i + period] for i in range(need - period)):
                return True
        return False

    hits = 0
    for _ in range(60):
        unit = [chance.randrange(3) for _ in range(chance.randint(1, 30))]
        tokens = [chance.randrange(3) for _ in range(chance.randint(0, 20))] + unit * chance.randint(1, 60)
        tokens = tokens[:200] + [chance.randrange(3) for _ in range(5)]
        expected = next((n for n in range(1, len(tokens) + 1) if circles(tokens[:n], 3)), None)
        assert length_at_end(tokens, 3) == expected
        hits += expected is not None
    assert 10 < hits < 60


def test_text_without_circles_is_left_alone():
    chance = random.Random(1)
    assert length_at_end([chance.randrange(50) for _ in range(5000)], 2) is None
    assert length_at_end(list(range(LONGEST + 1)) * 9, 2) is None  # longer than what is watched


@pytest.mark.parametrize("mode", ["ar", "verified", "diffusion"])
def test_answers_end_with_a_reason_of_their_own(mode):
    engine = Engine(json_model(), json_tokenizer())
    decode = DecodeConfig(mode=mode, max_tokens=300, repeats=4)
    looping = Request([5, 9], SamplingParams(), decode, regex("x{500}"))
    fine = Request([5, 9], SamplingParams(), decode.model_copy(update={"repeats": None}), regex("x{90}"))
    first, second = engine.run([looping, fine])
    assert (first.finish_reason, first.text) == ("repetition", "x" * LEAST)
    assert (second.finish_reason, second.text) == ("stop", "x" * 90)
