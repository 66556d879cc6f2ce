"""From an inquiry to its decisions: what to score, in as few rounds as it takes, and what the scores say.

`deliberate` asks and is answered: it yields batches of score requests, which may all run at once, and is sent their
scores. Who runs them, a Python program here or a server's worker thread, is not its business.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence

from ..engine import Continuation, Engine, ScoreHandle, ScoreRequest, Scores
from .answers import Answer, Decisions, JointAnswer, Usage, ranked
from .inquiry import CheckedGroup, Inquiry
from .joint import ExactRequest, average, search, softmax
from .questions import QuestionType
from .sheet import Sheet, Writer, orders

LONG_SHEET = 256
"""Tokens beyond which a question's sheet is read as a part of the prompt: as one path of a pass it would be too wide.

That depends on the question alone, so its answer doesn't depend on its company either way.
"""

AT_ONCE = 8
"""Score requests that run at once: each holds a copy of the state."""

Temperatures = Mapping[QuestionType, float]
"""By question type what its log-probabilities are divided by (decide.calibration); 1 for types that it doesn't have."""

Deliberation = Generator[Sequence[ScoreRequest], Sequence[Scores], Decisions]


def deliberate(writer: Writer, inquiry: Inquiry, temperatures: Temperatures) -> Deliberation:
    """Answer an inquiry: yields what to score, is sent the scores in the same order, returns the decisions.

    Raises PromptError for an empty state; who scores raises it for one past the context.
    """
    state = writer.state(inquiry.state)
    answers: dict[int, Answer] = {}
    read = cached = 0
    alone = _Alone(writer, inquiry, state)
    exact = [_exact(writer, group, state) for group in inquiry.groups if group.legal is not None]
    requests = [*alone.requests, *(one.request for group in exact for one in group)]
    scores = list((yield requests)) if requests else []
    read += sum(_tokens(request) for request in requests) - max(0, len(requests) - 1) * len(state)
    cached += scores[0].cached_tokens if scores else 0
    answers |= alone.answers(scores[: len(alone.requests)], temperatures)
    left = iter(scores[len(alone.requests) :])
    exactly = iter(exact)
    joint: list[JointAnswer] = []
    for group in inquiry.groups:
        heat = [temperatures.get(question.type, 1.0) for question in group.questions]
        if group.legal is not None:
            weights = average([one.distribution(next(left), heat) for one in next(exactly)])
            unseen = 0.0
        else:
            sheet = writer.sheet(group.questions)
            found = yield from search(group, state, sheet, heat)
            weights, unseen = found.weights, found.unseen
            read += len(sheet.tokens) + (0 if read else len(state))
        found_assignments, probabilities = ranked(weights)
        answer = JointAnswer(
            group.questions, found_assignments, probabilities, unseen, group.top, group.given, group.orders
        )
        joint.append(answer)
        answers |= zip(group.places, answer.marginals(), strict=True)
    ordered = tuple(answers[i] for i in range(len(inquiry.questions)))
    return Decisions(ordered, tuple(joint), Usage(read, cached, len(ordered)))


class _Alone:
    """The questions that are in no group, each on a sheet of its own for every order."""

    def __init__(self, writer: Writer, inquiry: Inquiry, state: Sequence[int]) -> None:
        self._inquiry = inquiry
        self._sheets = [
            (place, writer.sheet([inquiry.questions[place]], turn))
            for place in inquiry.alone
            for turn in range(min(inquiry.orders, orders(len(inquiry.questions[place].options))))
        ]
        self._short = [i for i, (_, sheet) in enumerate(self._sheets) if len(sheet.tokens) <= LONG_SHEET]
        self._long = [i for i, (_, sheet) in enumerate(self._sheets) if len(sheet.tokens) > LONG_SHEET]
        self.requests: list[ScoreRequest] = []
        if self._short:
            together = [one for i in self._short for one in _continuations(self._sheets[i][1], shared=True)]
            self.requests.append(ScoreRequest(state, together))
        for i in self._long:
            sheet = self._sheets[i][1]
            self.requests.append(ScoreRequest([*state, *sheet.tokens], _continuations(sheet, shared=False)))

    def answers(self, scores: Sequence[Scores], temperatures: Temperatures) -> dict[int, Answer]:
        """By question, what the scores say, averaged over the orders."""
        logprobs: dict[int, Sequence[tuple[float, ...]]] = {}
        if self._short:
            at = 0
            for i in self._short:
                count = len(self._sheets[i][1].labels[0])
                logprobs[i] = scores[0].logprobs[at : at + count]
                at += count
        for i, one in zip(self._long, scores[bool(self._short) :], strict=True):
            logprobs[i] = one.logprobs
        found: dict[int, list[list[float]]] = {}
        for i, (place, _) in enumerate(self._sheets):
            heat = temperatures.get(self._inquiry.questions[place].type, 1.0)
            found.setdefault(place, []).append(softmax([math.fsum(label) / heat for label in logprobs[i]]))
        return {
            place: Answer(
                self._inquiry.questions[place], tuple(math.fsum(p) / len(p) for p in zip(*turns, strict=True))
            )
            for place, turns in found.items()
        }


def _continuations(sheet: Sheet, shared: bool) -> list[Continuation]:
    """Each option's label after the sheet, or after a prompt that ends with it."""
    before = sheet.tokens if shared else ()
    return [Continuation((*before, *label), len(label)) for label in sheet.labels[0]]


def _exact(writer: Writer, group: CheckedGroup, state: Sequence[int]) -> list[ExactRequest]:
    assert group.legal is not None
    return [ExactRequest.of(state, writer.sheet(group.questions, turn), group.legal) for turn in range(group.orders)]


def _tokens(request: ScoreRequest) -> int:
    """Tokens of a request's prompt and of the sheets after it, every sheet once."""
    sheets = {one.tokens[: one.first] for one in request.continuations if one.scored is not None}
    return len(request.prompt) + sum(map(len, sheets))


def decide(engine: Engine, deliberation: Deliberation) -> Decisions:
    """Run a deliberation on an engine that nobody else steps. Raises what made a request fail; ends all if one did."""
    scores: Sequence[Scores] | None = None
    while True:
        try:
            requests = next(deliberation) if scores is None else deliberation.send(scores)
        except StopIteration as stopped:
            decisions: Decisions = stopped.value
            return decisions
        scores = _run(engine, requests)


def _run(engine: Engine, requests: Sequence[ScoreRequest]) -> list[Scores]:
    waiting, running, found = list(enumerate(requests)), dict[int, ScoreHandle](), dict[int, Scores]()
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                number, request = waiting.pop(0)
                running[number] = engine.score(request)
            engine.step()
            for number in [number for number, handle in running.items() if handle.done]:
                found[number] = running.pop(number).scores
    finally:
        for handle in running.values():
            handle.cancel()
    return [found[number] for number in range(len(requests))]
