"""Which guesses on a canvas to accept in a pass. A policy is asked again after every acceptance, with fresh guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..config import DecodeConfig
from .events import TokenLogprob


@dataclass(frozen=True)
class Guess:
    """A token for the masked canvas position `index`, its probability, and the entropy (nats) of its distribution."""

    index: int
    token: int
    confidence: float
    entropy: float
    logprob: TokenLogprob | None = None


class Policy(Protocol):
    """Accepts guesses one at a time within one pass."""

    def pick(self, guesses: Sequence[Guess]) -> Guess | None:
        """The guess to accept next, or None once the pass should end. Guesses come in order of position."""
        ...


def most_confident(guesses: Sequence[Guess]) -> Guess:
    """The guess with the largest confidence; among equals the first."""
    return max(guesses, key=lambda guess: guess.confidence)


class Threshold:
    """Accept every guess whose confidence reaches the threshold (Wu et al. 2025, Fast-dLLM, arXiv:2505.22618)."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def pick(self, guesses: Sequence[Guess]) -> Guess | None:
        best = most_confident(guesses)
        return best if best.confidence >= self._threshold else None


class EntropyBound:
    """Accept by rising entropy while the entropies accepted before sum to at most the bound.

    So the sum without the largest stays below the bound, which bounds what accepting positions jointly, and not one
    by one, can cost (Ben-Hamu et al. 2025, arXiv:2505.24857). The first guess always passes.
    """

    def __init__(self, bound: float) -> None:
        self._left = bound

    def pick(self, guesses: Sequence[Guess]) -> Guess | None:
        if self._left < 0:
            return None
        best = min(guesses, key=lambda guess: guess.entropy)
        self._left -= best.entropy
        return best


class TopN:
    """Accept the n most confident guesses."""

    def __init__(self, n: int) -> None:
        self._left = n

    def pick(self, guesses: Sequence[Guess]) -> Guess | None:
        self._left -= 1
        return most_confident(guesses) if self._left >= 0 else None


def make_policy(decode: DecodeConfig) -> Policy:
    """A fresh policy for one pass."""
    if decode.policy == "threshold":
        return Threshold(decode.threshold)
    return EntropyBound(decode.entropy_bound) if decode.policy == "entropy" else TopN(decode.top_n)
