"""Drafts: tokens that the next pass verifies, where they come from, and how likely each is to be accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from .costs import Budget

MAX_CONFIDENCE = 0.98
"""No draft is taken for certain: a branch for its refusal keeps some weight."""


@dataclass(frozen=True)
class Draft:
    """A tree of proposed tokens, and for each the chance that it is accepted if the one that it follows is.

    `parents`: the index of the token that each one follows, -1 for the last emitted token; parents come before
    children, and siblings differ. Without `parents` the tokens are a chain. `kind` groups drafts of equal reliability;
    what happens to one corrects the confidences of later ones of its kind. `forced`: the tokens that a constraint
    leaves no alternative to.
    """

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()
    source: str = "none"
    kind: str = "none"
    parents: tuple[int, ...] | None = None
    forced: frozenset[int] = frozenset()

    def parent(self, index: int) -> int:
        """What a token follows."""
        return index - 1 if self.parents is None else self.parents[index]

    def children(self, index: int) -> list[int]:
        """The alternatives after a token (-1: after the last emitted one)."""
        return [i for i in range(len(self.tokens)) if self.parent(i) == index]

    def depths(self) -> list[int]:
        """How many positions after the last emitted token each one stands."""
        depths: list[int] = []
        for i in range(len(self.tokens)):
            parent = self.parent(i)
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def keep(self, indices: Sequence[int]) -> Draft:
        """The draft with these tokens only; they must include what they follow, and are put in this order."""
        place = {-1: -1} | {index: i for i, index in enumerate(indices)}
        return replace(
            self,
            tokens=tuple(self.tokens[i] for i in indices),
            confidences=tuple(self.confidences[i] for i in indices),
            parents=tuple(place[self.parent(i)] for i in indices),
            forced=frozenset(place[i] for i in self.forced if i in place),
        )

    def cut(self, depth: int) -> Draft:
        """The first `depth` positions."""
        return self.keep([i for i, d in enumerate(self.depths()) if d <= depth])


class GrowingDraft:
    """A tree of drafts while it grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._confidences: list[float] = []
        self._parents: list[int] = []
        self._forced: set[int] = set()

    def add(self, token: int, confidence: float, parent: int, forced: bool = False) -> int:
        """One more token after `parent`; its index."""
        if forced:
            self._forced.add(len(self.tokens))
        self.tokens.append(token)
        self._confidences.append(confidence)
        self._parents.append(parent)
        return len(self.tokens) - 1

    def chain(self, tokens: Sequence[int], confidence: float, parent: int, forced_from: int) -> int:
        """Tokens one after the other, the first with a confidence, the others forced; the last one's index."""
        for i, token in enumerate(tokens):
            parent = self.add(token, confidence if i < forced_from else 1.0, parent, i >= forced_from)
        return parent

    def path(self, node: int) -> list[int]:
        """Tokens from the root to a node."""
        out = []
        while node >= 0:
            out.append(self.tokens[node])
            node = self._parents[node]
        return out[::-1]

    def draft(self, source: str, kind: str | None = None) -> Draft:
        """The tree as it is; `kind` is the source's name unless given."""
        return Draft(
            tuple(self.tokens),
            tuple(self._confidences),
            source,
            source if kind is None else kind,
            tuple(self._parents),
            frozenset(self._forced),
        )


class DraftSource(Protocol):
    """Something that proposes continuations of one request. It sees every emitted token once, in order."""

    def push(self, token: int) -> None:
        """`token` was emitted."""
        ...

    def propose(self, limit: int) -> Draft:
        """Tokens that may stand at the next `limit` positions."""
        ...


class PreviewDrafts:
    """Holds the proposals that the last pass previewed for the branch that came true, and knows what they tend to save.

    `accepted` [depth]: the chance that some proposal at a depth is right if those before were; a running mean that
    starts, and slowly returns where nothing is previewed, at PRIOR: previews that didn't pay may pay again later. An
    engine's requests share it, so that each needn't learn anew what the adapter is worth here.
    """

    PRIOR = 0.5
    MEMORY = 0.08
    RETURN = 0.002

    def __init__(self, accepted: list[float] | None = None) -> None:
        self._draft = Draft()
        self._accepted = [] if accepted is None else accepted

    def worths(self, block: int, budget: Budget) -> list[float]:
        """Tokens that a canvas of 0, 1, .. `block` mask rows is expected to save in the pass after it came true.

        What verifying them takes is subtracted; a draft that isn't worth its row won't be verified.
        """
        worths, reached, price = [0.0], 1.0, 0.0
        for depth in range(block):
            reached *= self._accepted[depth] if depth < len(self._accepted) else self.PRIOR
            before, price = price, budget.price(depth + 2)
            worths.append(worths[-1] + max(0.0, reached - (price - before)))
        return worths

    def most(self, block: int) -> float:
        """Tokens that a canvas of `block` mask rows would save if verifying them cost nothing."""
        total, reached = 0.0, 1.0
        for depth in range(block):
            reached *= self._accepted[depth] if depth < len(self._accepted) else self.PRIOR
            total += reached
        return total

    def learn(self, emitted: Sequence[int]) -> None:
        """What became of the proposals that are held: the pass brought these tokens."""
        if not self._draft.tokens:
            self._accepted[:] = [a + self.RETURN * (self.PRIOR - a) for a in self._accepted]
        at = -1
        for depth, truth in enumerate(emitted):
            children = self._draft.children(at)
            if not children:
                return
            right = [i for i in children if self._draft.tokens[i] == truth]
            if depth == len(self._accepted):
                self._accepted.append(self.PRIOR)
            self._accepted[depth] += self.MEMORY * (bool(right) - self._accepted[depth])
            if not right:
                return
            at = right[0]

    def set(self, draft: Draft) -> None:
        """Proposals for the positions after the last emitted token."""
        self._draft = draft

    def push(self, token: int) -> None:
        self._draft = Draft()

    def propose(self, limit: int) -> Draft:
        return self._draft.cut(limit)


class NgramDrafts:
    """Prompt look-up: the text that followed the most recent occurrence of the last few tokens.

    Every n-gram of the text is indexed once, when the token after it is known. The longest one wins, and how far back
    the two places agree says how likely they are to go on agreeing. Where the match overlaps the end of the text, the
    draft goes on copying itself, so that loops are drafted at full length.
    """

    LONGEST = 4
    SHORTEST = 2
    LENGTH = 16
    PRIOR = ((2, 0.4), (3, 0.6), (4, 0.75), (6, 0.85), (9, 0.92), (16, 0.95))
    """(least length of a match, chance of each drafted token): a text that was copied so far is copied further."""

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
        for n in range(min(self.LONGEST, end), self.SHORTEST - 1, -1):
            start = self._index.get(tuple(tokens[end - n :]))
            if start is not None:
                length, prior = max(known for known in self.PRIOR if known[0] <= self._match(start))
                count = min(limit, self.LENGTH)
                period = end - start
                draft = tuple(tokens[start + i % period] for i in range(count))
                return Draft(draft, (prior,) * count, "ngram", f"ngram{length}")
        return Draft()

    def _match(self, start: int) -> int:
        """How many tokens before `start` are those at the end of the text, as far as it matters."""
        tokens, end = self._tokens, len(self._tokens)
        most = min(start, self.PRIOR[-1][0])
        return next((i for i in range(most) if tokens[start - 1 - i] != tokens[end - 1 - i]), most)


class Calibration:
    """Corrects confidences by what became of earlier drafts of their kind: accepted so far over expected so far.

    `general`: what is known from other requests, which a request starts from; else it starts with what drafts state.
    """

    WEIGHT = 4.0
    """How many drafts' worth of trust that start has."""

    def __init__(self, general: Calibration | None = None) -> None:
        self._general = general
        self._hits: dict[str, float] = {}
        self._expected: dict[str, float] = {}

    def estimate(self, draft: Draft) -> list[float]:
        """For each token of the draft, the chance that it is accepted if the one that it follows is."""
        ratio = self._ratio(draft.kind)
        return [
            1.0 if i in draft.forced else min(MAX_CONFIDENCE, max(0.01, c * ratio))
            for i, c in enumerate(draft.confidences)
        ]

    def _ratio(self, kind: str) -> float:
        start = 1.0 if self._general is None else self._general._ratio(kind)
        return (self._hits.get(kind, 0.0) + self.WEIGHT * start) / (self._expected.get(kind, 0.0) + self.WEIGHT)

    def learn(self, draft: Draft, emitted: Sequence[int]) -> None:
        """Compare a draft, verified or only offered, with the tokens that were emitted at its positions."""
        if self._general is not None:
            self._general.learn(draft, emitted)
        at = -1
        for truth in emitted:
            children = draft.children(at)
            if not children:
                return
            right = [i for i in children if draft.tokens[i] == truth]
            if right and right[0] in draft.forced:  # says nothing about the source
                at = right[0]
                continue
            expected = sum(draft.confidences[i] for i in children)
            self._expected[draft.kind] = self._expected.get(draft.kind, 0.0) + expected
            if not right:
                return
            at = right[0]
            self._hits[draft.kind] = self._hits.get(draft.kind, 0.0) + 1.0


def reach(draft: Draft, estimates: Sequence[float]) -> list[float]:
    """For each token, the chance that it and all that it follows are accepted."""
    reached: list[float] = []
    for i, estimate in enumerate(estimates):
        parent = draft.parent(i)
        reached.append(estimate * (1.0 if parent < 0 else reached[parent]))
    return reached


Fit = Callable[[Draft, int], Draft]


class DraftBook:
    """All draft sources of one request: picks the draft that promises most, and learns from every outcome.

    `fit`: what becomes of a draft of at most so many positions before anything else, under a constraint.
    """

    def __init__(
        self, sources: Sequence[DraftSource], general: Calibration | None = None, fit: Fit | None = None
    ) -> None:
        self.sources = tuple(sources)
        self._fit = fit
        self._calibration = Calibration(general)
        self._offers: list[Draft] = []

    def best(self, limit: int) -> tuple[Draft, list[float]]:
        """The draft with the largest expected number of accepted tokens (the first such source), and its estimates."""
        self._offers = [source.propose(limit) for source in self.sources] if limit > 0 else []
        if self._fit is not None:
            self._offers = [self._fit(offer, limit) for offer in self._offers if offer.tokens]
        best, best_estimates, best_value = Draft(), list[float](), 0.0
        for offer in self._offers:
            estimates = self._calibration.estimate(offer)
            if (value := sum(reach(offer, estimates))) > best_value:
                best, best_estimates, best_value = offer, estimates, value
        return best, best_estimates

    def learn(self, emitted: Sequence[int]) -> None:
        """`emitted`: the tokens that the pass brought, the verified drafts' positions first."""
        for offer in self._offers:
            self._calibration.learn(offer, emitted)
        for token in emitted:
            for source in self.sources:
                source.push(token)
