"""Scoring: log-probabilities of many continuations of one prompt, as a tree of tokens that is run in a few passes.

The tree's nodes are commit rows, so what a row computes doesn't depend on which others share its pass: a continuation
scores the same alone and in company, wherever the model's commit rows are exact. A node that nothing is read after is
never run: the last token of a continuation costs no row, only a look at its parent's logits.

Shapes: V vocabulary, n rows of a pass that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..config import DecodeConfig
from ..errors import PromptError, UsageError
from .costs import Budget
from .drafts import Draft
from .events import Result
from .handle import Handle
from .plan import Outcome, Plan
from .request import Live, Request
from .sampling import Floats, log_total

MAX_READ = 64
"""Rows of a pass whose logits [n, V] are read: what they take in memory is bounded."""

RERUN = 16
"""A pass exceeds its budget for rows that would make so many times as many run again in the next one."""

ROOT = -1
"""The prompt's last token, as a parent."""


@dataclass(frozen=True)
class Continuation:
    """Token ids after the prompt. `scored`: of how many of the last ones the log-probability is wanted; None: of all.

    Those before them are context, such as a question that stands after a shared state.
    """

    tokens: tuple[int, ...]
    scored: int | None = None

    @property
    def first(self) -> int:
        """Index of the first token that is scored."""
        return 0 if self.scored is None else len(self.tokens) - self.scored


@dataclass(frozen=True)
class ScoreRequest:
    """A prompt as token ids, and what may come after it."""

    prompt: Sequence[int]
    continuations: Sequence[Continuation]

    def check(self, vocab_size: int) -> None:
        """Raises UsageError for continuations that can't be scored."""
        if not self.continuations:
            raise UsageError("nothing to score: a request needs at least one continuation")
        for continuation in self.continuations:
            if not 0 <= continuation.first < len(continuation.tokens):
                raise UsageError("a continuation needs tokens, and at least one of them is scored")
            if not all(0 <= token < vocab_size for token in continuation.tokens):
                raise UsageError(f"a continuation holds a token outside the vocabulary of {vocab_size}")


@dataclass(frozen=True)
class Scores:
    """What a scored request brought. `logprobs`: for each continuation, of each of its scored tokens, in nats.

    They are those of the model itself: log-softmax in float64 of its float32 logits. `rows`: how many rows the
    continuations took; counts and times else as in `Result`.
    """

    logprobs: tuple[tuple[float, ...], ...]
    prompt_tokens: int
    cached_tokens: int
    rows: int
    passes: int
    seconds: float
    prompt_seconds: float


class ScoreTree:
    """Continuations merged where they begin alike: nodes in the order of a depth-first walk, parents first."""

    def __init__(self, continuations: Sequence[Continuation]) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        children: dict[tuple[int, int], int] = {}
        below: dict[int, list[int]] = {}
        self._wanted: list[list[tuple[int, int]]] = []
        read: dict[int, set[int]] = {}
        for continuation in continuations:
            node = ROOT
            wanted: list[tuple[int, int]] = []
            for i, token in enumerate(continuation.tokens):
                if i >= continuation.first:
                    wanted.append((node, token))
                    read.setdefault(node, set()).add(token)
                if (node, token) not in children:
                    children[node, token] = len(self.tokens)
                    below.setdefault(node, []).append(len(self.tokens))
                    self.tokens.append(token)
                    self.parents.append(node)
                node = children[node, token]
            self._wanted.append(wanted)
        self.read = {node: sorted(tokens) for node, tokens in read.items()}
        """Which tokens' log-probabilities are read after each node."""
        self.order = [node for node in _walk(below) if node in self.read]
        """The nodes that are read, depth first."""
        self.depth = max(len(continuation.tokens) for continuation in continuations)

    def path(self, node: int) -> list[int]:
        """The nodes from the prompt to this one, itself included."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def collect(self, found: dict[int, dict[int, float]]) -> tuple[tuple[float, ...], ...]:
        """The log-probabilities [scored tokens] of every continuation, from those read at each node."""
        return tuple(tuple(found[node][token] for node, token in wanted) for wanted in self._wanted)


def _walk(below: dict[int, list[int]]) -> list[int]:
    order, stack = list[int](), [ROOT]
    while stack:
        order.append(node := stack.pop())
        stack += reversed(below.get(node, ()))
    return order


class ScoreDecoder:
    """Runs one request's tree, as many of its nodes in a pass as there are rows for.

    A node's ancestors run in the same pass, again if need be: rows that aren't committed leave nothing behind. So a
    single path that is longer than the budget exceeds it.
    """

    def __init__(self, live: Live, tree: ScoreTree) -> None:
        self._live = live
        self._tree = tree
        self._next = 0
        self._reading: list[int] = []
        self._found: dict[int, dict[int, float]] = {}
        self.rows = 0
        """Rows that the tree has taken so far."""

    def plan(self, budget: Budget) -> Plan:
        """The next nodes in depth-first order, with what they follow."""
        tree = self._tree
        bare = self._live.state.length >= self._live.prompt_tokens  # the prompt's last token is committed already
        place = {ROOT: -1} if bare else {ROOT: 0}
        nodes: list[int] = []
        self._reading = []
        for node in tree.order[self._next : self._next + MAX_READ]:
            whole = tree.path(node)
            path = [other for other in whole if other not in place]
            full = len(nodes) + len(path) + (not bare) > budget.rows
            # To leave out the end of a long path would mean to run all of it again.
            if self._reading and full and len(path) * RERUN > len(whole) - len(path):
                break
            for other in path:
                place[other] = len(nodes) + (not bare)
                nodes.append(other)
            self._reading.append(node)
        commit = [] if bare else [self._live.tokens[-1]]
        parents = [] if bare else [-1]
        commit += (tree.tokens[node] for node in nodes)
        parents += (place[tree.parents[node]] for node in nodes)
        picked = tuple(place[node] for node in self._reading)
        self.rows += len(commit)
        return Plan(tuple(commit), 0, parents=tuple(parents), picked=picked, decodes=False)

    def apply(self, outcome: Outcome) -> None:
        """Read the rows' logits, commit the prompt's last token, and forget the rest."""
        live, tree = self._live, self._tree
        for node, logits_V in zip(self._reading, outcome.logits, strict=True):
            self._found[node] = _logprobs(logits_V, tree.read[node])
        live.state.accept_path((0,) if live.state.length < live.prompt_tokens else ())
        self._next += len(self._reading)
        if self._next == len(tree.order):
            live.finish_reason = "stop"

    def receive(self, draft: Draft) -> None:
        """Never called."""
        raise AssertionError("scoring asks for no drafts")

    def scores(self, result: Result) -> Scores:
        """What was found, once all of it was read."""
        return Scores(
            self._tree.collect(self._found),
            prompt_tokens=result.prompt_tokens,
            cached_tokens=result.cached_tokens,
            rows=self.rows,
            passes=result.passes,
            seconds=result.seconds,
            prompt_seconds=result.prompt_seconds,
        )


def _logprobs(logits_V: Tensor, tokens: Sequence[int]) -> dict[int, float]:
    """log softmax in float64, of `tokens` alone."""
    logits: Floats = logits_V.double().cpu().numpy()
    total = log_total(logits)
    return {token: float(logits[token] - total) for token in tokens}


class ScoreHandle(Handle):
    """A caller's hold on a scored request: as any request's, with `scores` in place of an answer."""

    def __init__(self, live: Live, drop: Callable[[int], None], decoder: ScoreDecoder) -> None:
        super().__init__(live, drop)
        self._decoder = decoder

    @property
    def scores(self) -> Scores:
        """What was found. Raises what made the request fail, or UsageError while it runs or if it was cancelled."""
        result = self.result
        if result.finish_reason == "cancelled":
            raise UsageError("the request was cancelled: it has no scores")
        return self._decoder.scores(result)


def as_request(request: ScoreRequest, tree: ScoreTree, max_positions: int) -> Request:
    """How the engine sees it: an answer that may become as long as the tree is deep.

    Raises PromptError if prompt and continuations don't fit into the context.
    """
    length = len(request.prompt) + tree.depth - 1
    if length > max_positions:
        raise PromptError(
            f"a prompt of {len(request.prompt)} tokens and a continuation of {tree.depth} don't fit into the model's "
            f"context of {max_positions}: shorten them"
        )
    return Request(request.prompt, decode=DecodeConfig(mode="ar", max_tokens=tree.depth))
