"""Decoding under constraints: verified equals ar, every answer is valid, and others in the batch aren't touched."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from random_schemas import SCHEMAS
from structured_engine import END, FREE, MASKED, PADDED, TURN, json_model, json_tokenizer
from trifolium.config import DecodeConfig, SamplingParams
from trifolium.constrain import Constraint, grammar, json_schema, regex
from trifolium.engine import Engine, Request
from trifolium.engine.drafts import Draft
from trifolium.errors import ConstraintError, UsageError

GREEDY = SamplingParams()
SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, seed=2**63),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, logit_bias={300: 9.0, 34: -5.0}),
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "value": {"enum": ["red", "rest", "blüe"]},
        "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "maxItems": 3},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "value", "list", "ok"],
    "additionalProperties": False,
}
EXAMPLES = [
    json_schema(PERSON),
    json_schema({"type": "array", "items": {"enum": ["the", "there", "then"]}, "minItems": 2, "maxItems": 4}),
    regex(r"(ab|abc){2,6}the( the){2}[0-9]{4}"),
    grammar('root ::= "(" inner* ")"\ninner ::= "ab" | [0-9]{1,3} | "<" [a-c]+ ">"'),
]


@pytest.fixture(scope="module")
def model():
    return json_model()


def engine(model, **options) -> Engine:
    return Engine(model, json_tokenizer(), **options)


def make(constraint: Constraint | None, mode="ar", sampling=GREEDY, tokens=90, prompt=(5, 99, 120), **options):
    return Request(list(prompt), sampling, DecodeConfig(mode=mode, max_tokens=tokens, **options), constraint)


def check(result, schema=None) -> None:
    """Whatever came out is text of the constraint, and complete if it says so."""
    assert not {END, TURN, FREE, MASKED} & set(result.token_ids)
    assert all(token < END for token in result.token_ids)
    assert sum(result.accepted_by.values()) + result.passes >= result.tokens
    if schema is not None and result.complete:
        jsonschema.validate(result.parsed, schema)
    if result.complete:
        assert result.text == json_tokenizer().decode(result.token_ids)


class GarbageTrees:
    """Draft trees of random tokens, allowed and not, with the right ones among them now and then."""

    def __init__(self, truth: list[int], rng: random.Random) -> None:
        self._left, self._rng = list(truth), rng

    def push(self, token: int) -> None:
        if self._left:
            self._left.pop(0)

    def propose(self, limit: int) -> Draft:
        rng, tokens, parents, at = self._rng, [], [], -1
        for truth in self._left[: min(limit, 6)]:
            choices = rng.sample(range(PADDED), 2) + ([truth] if rng.random() < 0.8 else [])
            choices = list(dict.fromkeys(rng.sample(choices, len(choices))))
            first = len(tokens)
            tokens += choices
            parents += [at] * len(choices)
            at = first + (choices.index(truth) if truth in choices else 0)
        confidences = tuple(rng.uniform(0.2, 0.9) / parents.count(p) for p in parents)
        return Draft(tuple(tokens), confidences, "oracle", "oracle", tuple(parents))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: f"t{s.temperature}r{s.repetition_penalty}")
def test_verified_equals_ar(dtype, sampling):
    model = json_model(dtype)
    rng = random.Random(7)
    saved = 0
    for i, constraint in enumerate(EXAMPLES):
        prompt = [rng.randrange(256) for _ in range(rng.randint(1, 20))]
        ar = engine(model).run([make(constraint, sampling=sampling, prompt=prompt)])[0]
        check(ar)
        assert ar.passes >= ar.tokens
        for drafts in ("forced", "ngram", "preview", "both", "none"):
            one = engine(
                model,
                max_rows=(96, 17, 5, 2)[i % 4],
                extra_drafts=lambda request, ar=ar: [GarbageTrees(list(ar.token_ids), rng)],
            )
            block = rng.choice([None, 1, 2, 7])
            free = rng.random() < 0.7
            got = one.run(
                [make(constraint, "verified", sampling, prompt=prompt, drafts=drafts, block_size=block, free_rows=free)]
            )[0]
            assert got.token_ids == ar.token_ids and got.finish_reason == ar.finish_reason
            assert got.text == ar.text
            saved += ar.passes - got.passes
            assert drafts != "none" or got.passes == ar.passes
    assert saved > 0


def test_ar_may_jump_over_what_is_forced(model):
    for constraint in EXAMPLES:
        plain, jumping = (engine(model).run([make(constraint, drafts=drafts)])[0] for drafts in ("both", "forced"))
        assert plain.token_ids == jumping.token_ids and jumping.mode == "ar"
        assert jumping.passes < plain.passes
        assert jumping.accepted_by["forced"] == jumping.tokens - jumping.passes > 0


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.sampled_from(SAMPLINGS), st.integers(0, 3), st.sampled_from([1, 4, 9, 24]))
def test_random_schemas_in_every_mode(schema, sampling, seed, block):
    model = json_model(seed=seed)
    constraint = json_schema(schema)
    ar = engine(model).run([make(constraint, sampling=sampling, tokens=60)])[0]
    check(ar, schema)
    for drafts in ("forced", "both"):
        got = engine(model).run([make(constraint, "verified", sampling, 60, drafts=drafts, free_rows=True)])[0]
        assert got.token_ids == ar.token_ids and got.finish_reason == ar.finish_reason
    for threshold in (0.0, 0.3):
        request = make(constraint, "diffusion", sampling, 60, block_size=block, threshold=threshold)
        result = engine(model).run([request])[0]
        check(result, schema)
        assert result.complete or (result.finish_reason == "length" and result.tokens == 60)
        assert engine(model).run([request])[0].token_ids == result.token_ids


@pytest.mark.parametrize("sampling", SAMPLINGS[:2])
def test_diffusion_with_blocks_of_one_is_ar(model, sampling):
    for constraint in EXAMPLES:
        ar = engine(model).run([make(constraint, sampling=sampling)])[0]
        one = engine(model).run([make(constraint, "diffusion", sampling, block_size=1)])[0]
        assert one.token_ids == ar.token_ids


@pytest.mark.parametrize("policy", [{"policy": "entropy", "entropy_bound": 3.0}, {"policy": "top_n", "top_n": 2}])
def test_diffusion_takes_every_policy(model, policy):
    for constraint in EXAMPLES:
        result = engine(model).run([make(constraint, "diffusion", block_size=12, **policy)])[0]
        check(result)
        assert result.passes <= result.tokens


def test_independent_slots_are_filled_in_one_pass(model):
    schema = {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in "abcdef"},
        "required": list("abcdef"),
        "additionalProperties": False,
    }
    jump = engine(model).run([make(json_schema(schema), drafts="forced")])[0]
    fast = engine(model).run([make(json_schema(schema), "diffusion", block_size=48, threshold=0.0, free_rows=True)])[0]
    check(fast, schema)
    assert jump.passes >= 6 and fast.passes <= jump.passes // 2


def test_a_mixed_batch_leaves_everyone_alone(model):
    """Constrained, unconstrained and failing requests together answer as each does by itself."""
    rng = random.Random(2)
    requests = []
    for i in range(12):
        constraint = (None, *EXAMPLES)[i % 5]
        mode = ("ar", "verified")[i % 2]
        prompt = [rng.randrange(256) for _ in range(rng.randint(1, 30))]
        requests.append(make(constraint, mode, rng.choice(SAMPLINGS), rng.randint(5, 50), prompt))
    alone = [engine(model).run([request])[0].token_ids for request in requests]
    bad = make(grammar(f'start: "ab" <[{MASKED}]> "c"'), "verified", prompt=[1, 2])
    together = engine(model, max_running=5, max_rows=40)
    handles = [together.add(request) for request in requests[:6]]
    fails = together.add(bad)
    handles += [together.add(request) for request in requests[6:]]
    while together.step():
        pass
    assert [handle.result.token_ids for handle in handles] == alone
    with pytest.raises(ConstraintError, match="special token"):
        _ = fails.result


@pytest.mark.parametrize("mode", ["ar", "verified", "diffusion"])
def test_a_limit_inside_a_value_is_a_cut(model, mode):
    for limit in (1, 3, 7, 12):
        result = engine(model).run([make(json_schema(PERSON), mode, tokens=limit)])[0]
        assert result.finish_reason == "length" and result.tokens == limit and not result.complete
        with pytest.raises(ConstraintError, match="not complete"):
            _ = result.parsed


@pytest.mark.parametrize("mode", ["ar", "verified", "diffusion"])
def test_literals_alone_and_nothing_at_all(model, mode):
    constant = {"name": ["red", 1.5, None], "é": "☘"}
    result = engine(model).run([make(json_schema({"const": constant}), mode)])[0]
    assert result.parsed == constant and result.complete
    assert result.passes <= 1 or mode == "ar"
    nothing = engine(model).run([make(regex("(x{0})"), mode)])[0]
    assert nothing.text == "" and nothing.complete and nothing.passes == 0


@pytest.mark.parametrize("mode", ["ar", "verified", "diffusion"])
@pytest.mark.parametrize("ignore", [False, True])
def test_without_end_tokens_answers_end_where_they_must(model, mode, ignore):
    """`ignore_eos`, and engines that know no end token: what may end goes on, what must end does."""
    one = engine(model, eos_ids=None if ignore else frozenset())
    closed, open_ = one.run(
        [make(regex("[ab]{5}"), mode, ignore_eos=ignore), make(regex("[ab]*"), mode, tokens=30, ignore_eos=ignore)]
    )
    assert closed.complete and len(closed.text) == 5
    assert open_.finish_reason == "length" and open_.tokens == 30


@pytest.mark.parametrize("mode", ["ar", "verified", "diffusion"])
def test_log_probabilities_come_with_every_token(model, mode):
    result = engine(model).run([make(json_schema(PERSON), mode, logprobs=2)])[0]
    assert result.logprobs is not None and [p.token for p in result.logprobs] == list(result.token_ids)
    assert all(p.logprob <= 1e-9 for p in result.logprobs)


def test_a_stop_string_ends_and_does_not_complete(model):
    result = engine(model).run([make(json_schema(PERSON), stop=('"value',))])[0]
    assert result.finish_reason == "stop" and result.stop and not result.complete
    with pytest.raises(ConstraintError, match="stop string"):
        _ = result.parsed


def test_a_bad_constraint_is_refused_before_anything_runs(model):
    one = engine(model)
    with pytest.raises(ConstraintError, match="regex"):
        one.add(make(regex("(?=a)b")))
    with pytest.raises(UsageError, match="tokenizer"):
        Engine(model, eos_ids=frozenset()).add(make(EXAMPLES[0]))
    assert not one.step()


def test_the_canvas_shows_literals_pinned(model):
    one = engine(model)
    handle = one.add(
        make(
            json_schema({"type": "array", "prefixItems": [{"type": "boolean"}] * 4, "minItems": 4, "items": False}),
            "diffusion",
            block_size=9,
            free_rows=True,
            threshold=1.0,
        )
    )
    events = []
    while one.step():
        events += handle.events()
    states = {cell.state for event in events if hasattr(event, "cells") for cell in event.cells}
    assert "pinned" in states and "masked" in states | {"masked"}
    assert json.loads(handle.result.text) == handle.result.parsed
