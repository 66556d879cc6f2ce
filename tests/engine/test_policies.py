"""Acceptance policies on hand-made guesses."""

from __future__ import annotations

from trifolium.config import DecodeConfig
from trifolium.engine.policies import EntropyBound, Guess, Threshold, TopN, make_policy

GUESSES = [Guess(1, 10, 0.5, 1.2), Guess(2, 11, 0.95, 0.3), Guess(4, 12, 0.9, 0.2), Guess(5, 13, 0.1, 2.0)]


def picked(policy) -> list[int]:
    left, out = list(GUESSES), []
    while left and (guess := policy.pick(left)) is not None:
        left.remove(guess)
        out.append(guess.index)
    return out


def test_threshold_takes_what_reaches_it_most_confident_first():
    assert picked(Threshold(0.9)) == [2, 4]
    assert picked(Threshold(0.96)) == []
    assert picked(Threshold(0.0)) == [2, 4, 1, 5]


def test_entropy_bound_sums_what_was_taken_before():
    assert picked(EntropyBound(0.0)) == [4]
    assert picked(EntropyBound(0.2)) == [4, 2]
    assert picked(EntropyBound(0.5)) == [4, 2, 1]
    assert picked(EntropyBound(1.6)) == [4, 2, 1]
    assert picked(EntropyBound(1.8)) == [4, 2, 1, 5]


def test_top_n():
    assert picked(TopN(1)) == [2]
    assert picked(TopN(3)) == [2, 4, 1]
    assert picked(TopN(9)) == [2, 4, 1, 5]


def test_the_policy_named_in_the_request():
    assert picked(make_policy(DecodeConfig(policy="threshold", threshold=0.93))) == [2]
    assert picked(make_policy(DecodeConfig(policy="entropy", entropy_bound=0.5))) == [4, 2, 1]
    assert picked(make_policy(DecodeConfig(policy="top_n", top_n=2))) == [2, 4]
