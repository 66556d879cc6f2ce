"""Choosing tokens: the distribution, the filters against plain references, and the key of the noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from trifolium.config import SamplingParams
from trifolium.engine.sampling import Sampler, filtered, gumbel, keyed_bits

LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, 2.0, -3.0, 0.25])


def philox(key: tuple[int, int], counter: int) -> list[int]:
    """One block of Philox4x64-10 (Salmon et al. 2011), in plain integers."""
    x, k, low = [counter, 0, 0, 0], list(key), 2**64 - 1
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
        x = [(b >> 64) ^ x[1] ^ k[0], b & low, (a >> 64) ^ x[3] ^ k[1], a & low]
        k = [(k[0] + 0x9E3779B97F4A7C15) & low, (k[1] + 0xBB67AE8584CAA73B) & low]
    return x


def test_noise_is_a_fixed_function_of_seed_and_position():
    for key in [(7, 3), (0, 0), (2**64 - 1, 123_456)]:
        assert keyed_bits(*key, 8).tolist() == philox(key, 1) + philox(key, 2)
    assert keyed_bits(7, 3, 1000)[:5].tolist() == keyed_bits(7, 3, 5).tolist()
    extremes = gumbel(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert np.isfinite(extremes).all() and extremes[0] < -3 and extremes[1] > 36


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_choices_follow_the_softmax(temperature: float):
    draws = 20_000
    sampler = Sampler(SamplingParams(temperature=temperature, seed=11), [], len(LOGITS))
    counts = np.bincount([sampler.choose(LOGITS, p) for p in range(draws)], minlength=len(LOGITS))
    expected = np.exp(LOGITS / temperature)
    expected *= draws / expected.sum()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 24.3  # 0.1 % point of chi-square with 7 degrees of freedom


def test_filtered_choices_follow_the_renormalised_softmax():
    draws = 20_000
    params = SamplingParams(temperature=1.0, top_k=4, seed=5)
    sampler = Sampler(params, [], len(LOGITS))
    counts = np.bincount([sampler.choose(LOGITS, p) for p in range(draws)], minlength=len(LOGITS))
    kept = np.array([0, 1, 2, 5])
    expected = np.exp(LOGITS[kept])
    expected *= draws / expected.sum()
    assert counts.sum() == counts[kept].sum()
    assert ((counts[kept] - expected) ** 2 / expected).sum() < 16.3  # 0.1 % point, 3 degrees of freedom


logits_lists = st.lists(st.integers(-60, 60).map(lambda n: n / 8), min_size=2, max_size=60, unique=True)


@given(logits_lists, st.integers(1, 70), st.floats(0.05, 0.999), st.floats(0.001, 1.0), st.floats(0.2, 3.0))
def test_filters_keep_what_transformers_keeps(values, k, p, min_p, temperature):
    logits = np.array(values)
    scaled = torch.tensor(logits / temperature)[None]
    for params, warper in [
        ({"top_k": k}, TopKLogitsWarper(k)),
        ({"top_p": p}, TopPLogitsWarper(p)),
        ({"min_p": min_p}, MinPLogitsWarper(min_p)),
    ]:
        kept, survivors = filtered(logits, SamplingParams(temperature=temperature, **params))
        reference = torch.isfinite(warper(None, scaled.clone())[0]).nonzero()[:, 0].tolist()
        if kept.tolist() != reference:  # a mass or ratio that equals the bound up to rounding may go either way
            assert abs(len(kept) - len(reference)) <= 1
            probabilities = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
            mass = np.cumsum(np.sort(probabilities)[::-1])
            ratios = probabilities / probabilities.max()
            assert min(np.abs(mass - p).min(), np.abs(ratios - min_p).min()) < 1e-9
        assert np.array_equal(survivors, logits[kept] / temperature)


def test_filters_work_one_after_the_other_and_break_ties_by_id():
    tied = np.array([1.0, 3.0, 1.0, 3.0, 1.0, 0.0])
    assert filtered(tied, SamplingParams(temperature=1.0, top_k=3))[0].tolist() == [0, 1, 3]
    assert filtered(tied, SamplingParams(temperature=1.0, top_p=0.4))[0].tolist() == [1]
    # top-p sees the distribution that top-k left: of the two 3.0s each has mass 1/2.
    assert filtered(tied, SamplingParams(temperature=1.0, top_k=2, top_p=0.6))[0].tolist() == [1, 3]
    assert filtered(tied, SamplingParams(temperature=1.0, top_k=5, min_p=0.5))[0].tolist() == [1, 3]
    assert Sampler(SamplingParams(), [], 6).choose(tied, 0) == 1


@pytest.mark.parametrize("temperature", [1e-5, 9e-6, 1e-300, 0.0])
def test_the_coldest_temperatures_are_greedy_and_finite(temperature):
    params = SamplingParams(temperature=temperature, top_p=0.5, repetition_penalty=0.01)
    assert params.temperature == (temperature if temperature >= 1e-5 else 0.0)
    assert Sampler(params, [0], len(LOGITS)).choose(LOGITS, 3) == 0
    assert Sampler(params, [], len(LOGITS)).ranked(LOGITS, 3, np.arange(8), (), 1)[0][0] in (0, 5)


def test_penalties():
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=0.75, frequency_penalty=0.5)
    sampler = Sampler(params, [0, 4], 8)
    for i, token in enumerate([1, 6, 1]):
        sampler.push(token, 10 + i)
    seen = torch.tensor([[0, 4, 1, 6, 1]])
    expected = RepetitionPenaltyLogitsProcessor(1.5)(seen, torch.tensor(LOGITS)[None])[0].numpy()
    expected[1] -= 2 * 0.5 + 0.75  # presence and frequency count the answer only
    expected[6] -= 1 * 0.5 + 0.75
    assert np.allclose(sampler._penalise(LOGITS, None, ()), expected)
    ids = np.array([1, 2, 4, 6])
    assert np.allclose(sampler._penalise(LOGITS[ids], ids, ()), expected[ids])
    # Proposals ahead count as if they were in the answer already.
    ahead = sampler._penalise(LOGITS, None, [5, 5])
    sampler.push(5, 13), sampler.push(5, 14)
    assert np.allclose(ahead, sampler._penalise(LOGITS, None, ()))


@given(st.integers(0, 2**64 - 1), st.integers(0, 10_000), st.floats(0.1, 2.0))
def test_a_subset_that_holds_the_choice_makes_the_same_choice(seed, position, temperature):
    params = SamplingParams(temperature=temperature, seed=seed, repetition_penalty=1.2)
    sampler = Sampler(params, [1, 5], len(LOGITS))
    token = sampler.choose(LOGITS, position)
    ids = np.array(sorted({token, 0, 2, 5}))
    assert sampler.choose(LOGITS[ids], position, ids) == token
