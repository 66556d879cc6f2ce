"""Drafts: tokens that the next pass verifies, where they come from, and how likely each is to be accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_CONFIDENCE = 0.98
"""No draft is taken for certain: a branch for its refusal keeps some weight."""


@dataclass(frozen=True)
class Draft:
    """Proposed tokens after the last emitted one, and for each the chance that it is accepted if those before it are.

    `kind` groups drafts of equal reliability; what happens to one corrects the confidences of later ones of its kind.
    """

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    source: str = "none"
    kind: str = "none"

    def cut(self, count: int) -> Draft:
        """At most the first `count` tokens."""
        return Draft(self.tokens[:count], self.confidences[:count], self.source, self.kind)


class DraftSource(Protocol):
    """Something that proposes continuations of one request. It sees every emitted token once, in order."""

    def push(self, token: int) -> None:
        """`token` was emitted."""
        ...

    def propose(self, limit: int) -> Draft:
        """At most `limit` tokens that may follow the last emitted one."""
        ...


class PreviewDrafts:
    """Holds the proposals that the last pass previewed for the branch that came true."""

    def __init__(self) -> None:
        self._draft = Draft()

    def set(self, tokens: Sequence[int], confidences: Sequence[float]) -> None:
        """Proposals for the positions after the last emitted token."""
        self._draft = Draft(tuple(tokens), tuple(confidences), "preview", "preview")

    def push(self, token: int) -> None:
        self._draft = Draft()

    def propose(self, limit: int) -> Draft:
        return self._draft.cut(limit)


class NgramDrafts:
    """Prompt look-up: the text that followed the most recent occurrence of the last few tokens.

    Every n-gram of the text is indexed once, when the token after it is known. The longest match wins. Where the
    match overlaps the end of the text, the draft goes on copying itself, so that loops are drafted at full length.
    """

    LONGEST = 4
    SHORTEST = 2
    LENGTH = 12
    PRIOR = ((2, 0.4), (3, 0.6), (4, 0.75))

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens: list[int] = []
        self._index: dict[tuple[int, ...], int] = {}
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> None:
        end = len(self._tokens)
        for n in range(self.SHORTEST, min(self.LONGEST, end) + 1):
            self._index[tuple(self._tokens[end - n :])] = end
        self._tokens.append(token)

    def propose(self, limit: int) -> Draft:
        tokens, end = self._tokens, len(self._tokens)
        for n, prior in reversed(self.PRIOR):
            start = self._index.get(tuple(tokens[-n:])) if n <= end else None
            if start is not None:
                count = min(limit, self.LENGTH)
                period = end - start
                draft = tuple(tokens[start + i % period] for i in range(count))
                return Draft(draft, (prior,) * count, "ngram", f"ngram{n}")
        return Draft()


class Calibration:
    """Corrects confidences by what became of earlier drafts of their kind: accepted so far over expected so far."""

    WEIGHT = 4.0
    """How many drafts' worth of trust the stated confidences start with."""

    def __init__(self) -> None:
        self._hits: dict[str, float] = {}
        self._expected: dict[str, float] = {}

    def estimate(self, draft: Draft) -> list[float]:
        """For each token of the draft, the chance that it is accepted if those before it are."""
        hits, expected = self._hits.get(draft.kind, 0.0), self._expected.get(draft.kind, 0.0)
        ratio = (hits + self.WEIGHT) / (expected + self.WEIGHT)
        return [min(MAX_CONFIDENCE, max(0.01, c * ratio)) for c in draft.confidences]

    def learn(self, draft: Draft, emitted: Sequence[int]) -> None:
        """Compare a draft, verified or only offered, with the tokens that were emitted at its positions."""
        for token, confidence, truth in zip(draft.tokens, draft.confidences, emitted, strict=False):
            self._expected[draft.kind] = self._expected.get(draft.kind, 0.0) + confidence
            if token != truth:
                return
            self._hits[draft.kind] = self._hits.get(draft.kind, 0.0) + 1.0


def reach(estimates: Sequence[float]) -> list[float]:
    """The chance that drafts 1 .. i are all accepted, for every i."""
    out, product = [], 1.0
    for estimate in estimates:
        product *= estimate
        out.append(product)
    return out


class DraftBook:
    """All draft sources of one request: picks the draft that promises most, and learns from every outcome."""

    def __init__(self, sources: Sequence[DraftSource]) -> None:
        self.sources = tuple(sources)
        self._calibration = Calibration()
        self._offers: list[Draft] = []

    def best(self, limit: int) -> tuple[Draft, list[float]]:
        """The draft with the largest expected number of accepted tokens (the first such source), and its estimates."""
        self._offers = [source.propose(limit) for source in self.sources] if limit > 0 else []
        best, best_estimates, best_value = Draft(), list[float](), 0.0
        for offer in self._offers:
            estimates = self._calibration.estimate(offer)
            if (value := sum(reach(estimates))) > best_value:
                best, best_estimates, best_value = offer, estimates, value
        return best, best_estimates

    def learn(self, emitted: Sequence[int]) -> None:
        """`emitted`: the tokens that the pass brought, the verified drafts' positions first."""
        for offer in self._offers:
            self._calibration.learn(offer, emitted)
        for token in emitted:
            for source in self.sources:
                source.push(token)
