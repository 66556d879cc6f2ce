"""Verified decoding gives AR's tokens, whatever the drafts, blocks, sampling, dtype and company."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from trifolium.config import DecodeConfig, SamplingParams
from trifolium.engine import Engine, Request
from trifolium.engine.commit import VerifiedDecoder
from trifolium.engine.plan import Outcome

DTYPES = [torch.float32, torch.int8]
GREEDY = SamplingParams()
SAMPLINGS = [
    GREEDY,
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, seed=2**63),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=-0.3),
    SamplingParams(temperature=1.3, repetition_penalty=0.9, frequency_penalty=0.7, seed=17),
]


def make(prompt, sampling, mode, tokens=24, **options) -> Request:
    return Request(prompt, sampling, DecodeConfig(mode=mode, max_tokens=tokens, **options))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda s: f"t{s.temperature}r{s.repetition_penalty}")
@pytest.mark.parametrize("kind", [{}, {"tied": True}, {"hybrid": True}], ids=str)
def test_verified_equals_ar(models, prompts, answer, oracle, tree_oracle, dtype, sampling, kind):
    """10 prompts for each of 30 settings, with random blocks, row budgets, sources and draft qualities."""
    model = models(dtype, **kind)
    rng = random.Random(f"{dtype} {sampling.temperature} {kind}")
    saved = passes = 0
    for i, prompt in enumerate(prompts(10, seed=len(kind))):
        truth = answer(model, make(prompt, sampling, "ar"))
        quality = (0.0, 0.3, 0.7, 0.95, 1.0)[i % 5]
        engine = Engine(
            model,
            max_rows=(96, 5, 17, 2, 40, 1)[i % 6],
            extra_drafts=lambda request, i=i, q=quality, t=truth: [rng.choice([oracle, tree_oracle])(t, i, q)],
        )
        drafts = rng.choice(["preview", "ngram", "both"])
        block = rng.choice([None, 1, 2, 3, 7, 12])
        result = engine.run([make(prompt, sampling, "verified", drafts=drafts, block_size=block)])[0]
        assert result.token_ids == truth
        assert sum(result.accepted_by.values()) + result.passes == result.tokens
        saved += result.tokens - result.passes
        passes += result.passes
    assert saved > 0.1 * passes  # the drafts did take part


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batched_with_random_arrivals_equals_alone(models, prompts, answer, tree_oracle, dtype, hybrid):
    model = models(dtype, hybrid=hybrid)
    rng = random.Random(5)
    requests, truths = [], {}
    for i, prompt in enumerate(prompts(24, seed=9)):
        sampling = rng.choice(SAMPLINGS)
        tokens = rng.randint(1, 40)
        truths[tuple(prompt), i] = answer(model, make(prompt, sampling, "ar", tokens))
        requests.append(make(prompt, sampling, rng.choice(["ar", "verified", "verified"]), tokens))
    answers = list(truths.values())
    by_request = {id(request): truth for request, truth in zip(requests, answers, strict=True)}
    engine = Engine(
        model, max_running=5, max_rows=60, extra_drafts=lambda request: [tree_oracle(by_request[id(request)], 1, 0.8)]
    )
    handles, waiting = [], list(requests)
    while waiting or not all(handle.done for handle in handles):
        for _ in range(rng.randint(0, 3)):
            if waiting:
                handles.append(engine.add(waiting.pop(0)))
        engine.step()
    assert [handle.result.token_ids for handle in handles] == answers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_scratch_is_never_read(models, prompts, answer, tree_oracle, dtype):
    """Cells past the committed length are poisoned between passes."""
    model = models(dtype)
    for i, prompt in enumerate(prompts(6, seed=4)):
        truth = answer(model, make(prompt, GREEDY, "ar"))
        engine = Engine(model, extra_drafts=lambda request, i=i, t=truth: [tree_oracle(t, i, 0.7)])
        handle = engine.add(make(prompt, GREEDY, "verified"))
        state = handle._live.state
        while engine.step():
            with torch.inference_mode():
                for layer in state.layers:
                    layer.keys[:, state.length :] = 1e6
                    layer.values[:, state.length :] = -1e6
        assert handle.result.token_ids == truth


class AcceptsOneTooMany(VerifiedDecoder):
    """The classic fault: one more row is committed than was right."""

    def apply(self, outcome: Outcome):
        ask = super().apply(outcome)
        if len(outcome.largest) > 1:
            self._live.state.accept(1)
        return ask


class TrustsTheLastDraft(VerifiedDecoder):
    """Another: the draft after the last right one is taken unverified."""

    def apply(self, outcome: Outcome):
        drafts = self._layout.draft
        largest = list(outcome.largest)
        for row in range(len(largest)):
            children = drafts.children(row - 1)
            if children and all(drafts.tokens[i] != largest[row] for i in children):
                largest[row] = drafts.tokens[children[0]]
                break
        return super().apply(replace(outcome, largest=largest))


@pytest.mark.parametrize("faulty", [AcceptsOneTooMany, TrustsTheLastDraft])
def test_these_tests_notice_a_broken_accept_rule(models, prompts, answer, oracle, monkeypatch, faulty):
    model = models()
    truths = [(prompt, answer(model, make(prompt, GREEDY, "ar"))) for prompt in prompts(6)]
    monkeypatch.setattr("trifolium.engine.engine.VerifiedDecoder", faulty)
    noticed = 0
    for i, (prompt, truth) in enumerate(truths):
        engine = Engine(model, extra_drafts=lambda request, i=i, t=truth: [oracle(t, i, 0.7)])
        handle = engine.add(make(prompt, GREEDY, "verified", drafts="ngram"))
        while engine.step():
            pass
        noticed += handle._live.error is not None or handle.result.token_ids != truth
    assert noticed >= 4


def test_perfect_drafts_need_few_passes(models, prompts, answer, oracle):
    model = models()
    for prompt in prompts(3):
        truth = answer(model, make(prompt, GREEDY, "ar", 33))
        engine = Engine(model, extra_drafts=lambda request, t=truth: [oracle(t, 0, 1.0)])
        result = engine.run([make(prompt, GREEDY, "verified", 33, drafts="ngram")])[0]
        assert result.token_ids == truth and result.passes <= 4


def test_without_drafts_verified_is_ar(models, prompts):
    model = models()
    for prompt in prompts(3):
        ar, plain = (Engine(model).run([make(prompt, GREEDY, mode, drafts="none")])[0] for mode in ("ar", "verified"))
        assert ar.token_ids == plain.token_ids and ar.passes == plain.passes == ar.tokens
        assert ar.tokens_per_pass == 1.0
        assert plain.drafts == "none" and sum(plain.accepted_by.values()) == 0


def test_chain_and_plain_adapters_draft_the_same_answer(models, prompts, answer):
    for chain in (0, 6):
        model = models(chain=chain)
        for prompt in prompts(4):
            truth = answer(model, make(prompt, GREEDY, "ar"))
            assert answer(model, make(prompt, GREEDY, "verified", drafts="preview")) == truth


@pytest.mark.parametrize("scale", [3.0, float("nan")])
def test_a_broken_adapter_costs_drafts_but_no_answer(models, prompts, answer, scale):
    """With weights this large the chain's feedback overflows."""
    model = models(scale=scale)
    for prompt in prompts(4):
        truth = answer(model, make(prompt, SAMPLINGS[2], "ar"))
        assert answer(model, make(prompt, SAMPLINGS[2], "verified", drafts="preview", block_size=12)) == truth
