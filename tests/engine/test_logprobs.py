"""Log-probabilities of emitted tokens, and biased logits, in every mode."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tiny_engine import VOCAB
from trifolium.config import DecodeConfig, SamplingParams
from trifolium.engine import Engine, Request, TextEvent
from trifolium.engine.sampling import Sampler, logprob_of
from trifolium.errors import UsageError

MODES = ("ar", "verified", "diffusion")


def answer(model, prompt, mode, *, logprobs=None, **sampling):
    decode = DecodeConfig(mode=mode, max_tokens=24, logprobs=logprobs)
    engine = Engine(model, eos_ids=frozenset(), max_prefix_bytes=0)
    handle = engine.add(Request(prompt, SamplingParams(**sampling), decode))
    while engine.step():
        pass
    return handle.result, list(handle.events())


def log_softmax_after(model, tokens):
    """[len(tokens), V] in float64: what the model says after each token, in one plain causal pass."""
    logits = model.vocabulary_logits(model.commit_stream(torch.tensor([tokens]))[0])[0]
    return torch.log_softmax(logits.double(), -1).detach().numpy()


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_ar_and_verified_tell_the_model_s_own_log_softmax(models, prompts, temperature):
    model = models()
    for prompt in prompts(4, seed=3):
        results = {}
        for mode in ("ar", "verified"):
            result, events = answer(model, prompt, mode, logprobs=3, temperature=temperature, seed=5)
            results[mode] = result.logprobs
            told = [one for event in events if isinstance(event, TextEvent) for one in event.logprobs]
            assert tuple(told) == result.logprobs
            assert tuple(one.token for one in told) == result.token_ids
        assert results["ar"] == results["verified"]
        tokens = [*prompt, *(one.token for one in results["ar"])]
        reference = log_softmax_after(models(None), tokens)[len(prompt) - 1 : -1]
        for row, one in zip(reference, results["ar"], strict=True):
            assert one.logprob == pytest.approx(row[one.token], abs=1e-4)
            best = np.argsort(-row)[:3]
            assert [token for token, _ in one.top] == best.tolist()
            assert [value for _, value in one.top] == pytest.approx(row[best], abs=1e-4)


def test_diffusion_tells_what_tokens_were_accepted_by(models, prompts):
    result, _ = answer(models(), prompts(1)[0], "diffusion", logprobs=2)
    assert [one.token for one in result.logprobs] == list(result.token_ids)
    assert all(one.logprob <= 1e-9 and len(one.top) == 2 for one in result.logprobs)
    assert all(one.top[0][1] >= one.logprob - 1e-9 for one in result.logprobs)


@pytest.mark.parametrize("mode", MODES)
def test_nobody_is_told_who_did_not_ask(models, prompts, mode):
    result, events = answer(models(), prompts(1)[0], mode)
    assert result.logprobs is None
    assert all(not event.logprobs for event in events if isinstance(event, TextEvent))


@pytest.mark.parametrize("mode", MODES)
def test_a_bias_bans_and_forces_tokens(models, prompts, mode):
    prompt = prompts(1)[0]
    plain, _ = answer(models(), prompt, mode)
    first = plain.token_ids[0]
    banned, _ = answer(models(), prompt, mode, logit_bias={first: -100.0})
    assert first not in banned.token_ids
    # previews only look at their likeliest candidates, so diffusion can't be forced to what is not among them
    if mode != "diffusion":
        forced, _ = answer(models(), prompt, mode, logit_bias={7: 100.0})
        assert set(forced.token_ids) == {7}


def test_verified_equals_ar_under_bias_and_temperature(models, prompts):
    for i, prompt in enumerate(prompts(4, seed=9)):
        options = {"temperature": 0.9, "seed": i, "logit_bias": {3: 2.5, 11: -4.0, VOCAB - 1: 1.0}}
        ar, _ = answer(models(), prompt, "ar", **options)
        verified, _ = answer(models(), prompt, "verified", **options)
        assert ar.token_ids == verified.token_ids


def test_a_bias_reaches_candidates_by_their_id():
    logits = np.array([0.5, 2.0, 1.0, 1.5])
    sampler = Sampler(SamplingParams(logit_bias={9: 3.0, 4: 1.0}), [], 12)
    assert sampler.choose(logits, 0, np.array([2, 4, 7, 9])) == 9
    assert sampler.choose(logits[:3], 0, np.array([2, 4, 7])) == 4
    assert logits.tolist() == [0.5, 2.0, 1.0, 1.5]


def test_a_bias_outside_the_vocabulary_is_refused(models):
    with pytest.raises(UsageError, match="logit_bias names tokens outside the vocabulary"):
        Engine(models(), eos_ids=frozenset()).add(Request([1], SamplingParams(logit_bias={VOCAB: 1.0})))


def test_logprobs_of_candidates_count_the_tail():
    logits = np.log(np.array([0.1, 0.5, 0.2]))
    one = logprob_of(8, logits, 5, np.array([3, 8, 9]), float(np.log(0.2)))
    assert one.logprob == pytest.approx(np.log(0.5))
    assert [token for token, _ in one.top] == [8, 9, 3]
