"""The distribution over a group's legal assignments, by the chain rule along a sheet's places.

With the labels of assignment a at the places 1, 2, ... of a sheet, m_i the mass of all options that may legally stand
at place i after those before it, and T_i the temperature of the question there,

    p(a)  ~  prod_i  m_i softmax_i(log p(label_i | state, sheet, labels before it) / T_i),

over legal assignments only. With T = 1 this is the product of the model's own probabilities of the labels: what plain
AR passes over the written-out answers give. The factors after any prefix sum to at most 1, which is what bounds the
mass of assignments that a search hasn't seen.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from ..engine import Continuation, ScoreRequest, Scores
from ..errors import QuestionError
from .constraints import allowed
from .inquiry import CheckedGroup
from .sheet import Label, Sheet

MAX_EXPANDED = 4096
"""Prefixes of assignments that a search looks behind."""

MAX_OPEN = 65_536
"""Prefixes that a search remembers."""

EXPANDED_AT_ONCE = 64
MAX_UNSEEN = 1e-3
"""Unseen mass at which a search is done."""

Assignment = tuple[int, ...]
Prefix = tuple[int, ...]
"""Options at a sheet's first places, in the order of the places."""


@dataclass(frozen=True)
class ExactRequest:
    """All of a group's legal assignments, written out on one sheet, to be scored in one request."""

    sheet: Sheet
    written: tuple[Prefix, ...]
    request: ScoreRequest

    @classmethod
    def of(cls, state: Sequence[int], sheet: Sheet, legal: Sequence[Assignment]) -> ExactRequest:
        """`legal` holds an option for each question; on the sheet they stand by its places."""
        written = tuple(tuple(assignment[place] for place in sheet.places) for assignment in legal)
        continuations = [Continuation(tokens_of(sheet, one)) for one in written]
        return cls(sheet, written, ScoreRequest([*state, *sheet.tokens], continuations))

    def distribution(self, scores: Scores, temperatures: Sequence[float]) -> dict[Assignment, float]:
        """p of every legal assignment; `temperatures`: one for each question of the group."""
        steps: dict[Prefix, dict[int, float]] = {}
        for one, logprobs in zip(self.written, scores.logprobs, strict=True):
            at = 0
            for place, option in enumerate(one):
                size = len(self.sheet.labels[place][option])
                steps.setdefault(one[:place], {})[option] = math.fsum(logprobs[at : at + size])
                at += size
        factors = {
            prefix: step_factors(options, temperatures[self.sheet.places[len(prefix)]])
            for prefix, options in steps.items()
        }
        weights = [math.fsum(factors[one[:i]][option] for i, option in enumerate(one)) for one in self.written]
        masses = softmax(weights)
        return {back(self.sheet, one): p for one, p in zip(self.written, masses, strict=True)}


def tokens_of(sheet: Sheet, prefix: Prefix) -> Label:
    """The labels of a prefix, written one after another."""
    return tuple(token for place, option in enumerate(prefix) for token in sheet.labels[place][option])


def back(sheet: Sheet, written: Prefix) -> Assignment:
    """Options by question, from options by place."""
    by_question = dict(zip(sheet.places, written, strict=True))
    return tuple(by_question[question] for question in range(len(written)))


def softmax(logs: Sequence[float]) -> list[float]:
    """exp(l) / sum(exp(l)), shifted by the largest."""
    largest = max(logs)
    weights = [math.exp(value - largest) for value in logs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def log_sum(logs: Sequence[float]) -> float:
    """log(sum(exp(l))); -inf for none."""
    largest = max(logs, default=-math.inf)
    return largest if largest == -math.inf else largest + math.log(math.fsum(math.exp(v - largest) for v in logs))


def step_factors(logprobs: Mapping[int, float], temperature: float) -> dict[int, float]:
    """log(m softmax(log p / T)) of the options that may stand at one place; log p itself for T = 1."""
    if temperature == 1.0:
        return dict(logprobs)
    mass = log_sum(list(logprobs.values()))
    cooled = {option: value / temperature for option, value in logprobs.items()}
    total = log_sum(list(cooled.values()))
    return {option: mass + value - total for option, value in cooled.items()}


def average(distributions: Sequence[Mapping[Assignment, float]]) -> dict[Assignment, float]:
    """The mean of distributions over the same assignments."""
    return {a: math.fsum(d[a] for d in distributions) / len(distributions) for a in distributions[0]}


@dataclass(frozen=True)
class Found:
    """What a search has seen: assignments with their share of all mass, and the share that it hasn't seen, at most."""

    weights: dict[Assignment, float]
    unseen: float


class Frontier:
    """Prefixes that nothing behind has been looked at, with the logs of their mass; a bounded number of them."""

    def __init__(self) -> None:
        self._open: list[tuple[float, Prefix]] = [(-0.0, ())]
        self._dropped = -math.inf

    def __len__(self) -> int:
        return len(self._open)

    @property
    def mass(self) -> float:
        """log of the mass of all of them, and of those that were dropped."""
        return log_sum([self._dropped, *(-minus for minus, _ in self._open)])

    def take(self, count: int, deepest: bool) -> list[tuple[float, Prefix]]:
        """The `count` likeliest as (log mass, prefix), or the likeliest of the deepest; they are no longer there."""
        count = min(count, len(self._open))
        if not deepest:
            taken = [heapq.heappop(self._open) for _ in range(count)]
        else:
            depth = max(len(prefix) for _, prefix in self._open)
            taken = heapq.nsmallest(count, (item for item in self._open if len(item[1]) == depth))
            gone = {prefix for _, prefix in taken}
            self._open = [item for item in self._open if item[1] not in gone]
            heapq.heapify(self._open)
        return [(-minus, prefix) for minus, prefix in taken]

    def put(self, log_mass: float, prefix: Prefix) -> None:
        """Add one; beyond MAX_OPEN the less likely half is dropped."""
        heapq.heappush(self._open, (-log_mass, prefix))
        if len(self._open) > MAX_OPEN:
            self._open.sort()
            self._dropped = log_sum([self._dropped, *(-minus for minus, _ in self._open[MAX_OPEN // 2 :])])
            del self._open[MAX_OPEN // 2 :]


def search(
    group: CheckedGroup, state: Sequence[int], sheet: Sheet, temperatures: Sequence[float]
) -> Generator[Sequence[ScoreRequest], Sequence[Scores], Found]:
    """Best-first search for a group with too many legal assignments: yields what to score, is sent the scores.

    It first goes straight down, many likely prefixes at once, so that there are whole assignments; then it looks
    behind the likeliest prefixes, until what may be hidden behind the others is at most MAX_UNSEEN of all mass, or
    MAX_EXPANDED prefixes were looked behind. Raises QuestionError if that brought no legal assignment.
    """
    prompt = (*state, *sheet.tokens)
    frontier = Frontier()
    leaves: dict[Prefix, float] = {}
    expanded, last = 0, len(sheet.places) - 1
    while len(frontier) and expanded < MAX_EXPANDED and not _done(leaves, frontier):
        batch = frontier.take(min(EXPANDED_AT_ONCE, MAX_EXPANDED - expanded), deepest=not leaves)
        expanded += len(batch)
        for log_mass, written in (yield from _expand(group, prompt, sheet, batch, temperatures)):
            if len(written) > last:
                leaves[written] = log_mass
            else:
                frontier.put(log_mass, written)
    if not leaves:
        raise QuestionError("the search found no answers that satisfy the constraints: use fewer", ("constraints",))
    total = log_sum([*leaves.values(), frontier.mass])
    weights = {back(sheet, one): math.exp(value - total) for one, value in leaves.items()}
    return Found(weights, math.exp(frontier.mass - total))


def _done(leaves: Mapping[Prefix, float], frontier: Frontier) -> bool:
    hidden = frontier.mass
    return bool(leaves) and math.exp(hidden - log_sum([*leaves.values(), hidden])) <= MAX_UNSEEN


def _expand(
    group: CheckedGroup,
    prompt: Sequence[int],
    sheet: Sheet,
    batch: Sequence[tuple[float, Prefix]],
    temperatures: Sequence[float],
) -> Generator[Sequence[ScoreRequest], Sequence[Scores], list[tuple[float, Prefix]]]:
    """One place more for every prefix of the batch, as far as that may be legal."""
    written = [
        (prefix, option)
        for _, prefix in batch
        for option in range(len(sheet.labels[len(prefix)]))
        if allowed(group.constraints, _partial(sheet, (*prefix, option)))
    ]
    if not written:
        return []
    continuations = [
        Continuation(tokens_of(sheet, (*prefix, option)), len(sheet.labels[len(prefix)][option]))
        for prefix, option in written
    ]
    (scores,) = yield [ScoreRequest(prompt, continuations)]
    steps: dict[Prefix, dict[int, float]] = {}
    for (prefix, option), logprobs in zip(written, scores.logprobs, strict=True):
        steps.setdefault(prefix, {})[option] = math.fsum(logprobs)
    return [
        (log_mass + factor, (*prefix, option))
        for log_mass, prefix in batch
        if prefix in steps
        for option, factor in step_factors(steps[prefix], temperatures[sheet.places[len(prefix)]]).items()
    ]


def _partial(sheet: Sheet, prefix: Prefix) -> list[int | None]:
    """A prefix as a partial assignment."""
    partial: list[int | None] = [None] * len(sheet.places)
    for place, option in enumerate(prefix):
        partial[sheet.places[place]] = option
    return partial
