"""Diffusion under a constraint: a canvas that slides along the answer, with literals pinned and slots filled.

The canvas stands for the positions after the answer. Its first token is predicted by a commit row, exactly as AR would.
What follows is taken from left to right, in the same pass, as far as it is certain: literals, which the constraint
leaves no choice about, and guesses of preview rows that the policy accepts, each chosen from what the constraint allows
after all that stands before it. So every answer is a sentence of the constraint, or the beginning of one.

Guesses beyond the first open position are kept as inputs of the next preview, where the policy is sure of them. They
become text when the answer reaches them and the constraint allows them there; else they are masked again.

Shapes: M preview rows, V vocabulary, C candidates.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..constrain import Allowed, Guide
from ..model import MASK
from .costs import Budget
from .drafts import Draft
from .events import Cell, TokenLogprob
from .plan import Outcome, Plan
from .policies import Guess, make_policy
from .proposals import CANDIDATES, Proposer, probabilities
from .request import Live
from .sampling import Floats, Ids, logprob_of
from .skeleton import Skeleton, sketch


class StructuredDecoder:
    """Decodes one request by diffusion under its constraint, with canvases of `block` positions."""

    def __init__(self, live: Live, guide: Guide, proposer: Proposer, block: int) -> None:
        self._live = live
        self._guide = guide
        self._proposer = proposer
        self._block = block
        self._lead: list[int] = []
        self._skeleton = Skeleton()
        self._ahead: dict[int, Guess] = {}  # accepted, not yet confirmed, by position

    def plan(self, budget: Budget) -> Plan:
        live = self._live
        known = live.tokens[live.state.length :]
        # Literals at the start of an answer; later ones are emitted as soon as they are known.
        self._lead = self._guide.run(limit=min(live.remaining, max(0, budget.rows - len(known) - 1)))
        start = len(live.tokens) + len(self._lead)
        size = min(self._block, live.remaining - len(self._lead), live.max_positions - start)
        assert live.tokenizer is not None
        self._skeleton = sketch(self._guide, live.tokenizer, self._lead, size)
        inputs = tuple(self._input(start + i, token) for i, token in enumerate(self._skeleton.tokens[:-1]))
        commit = (*known, *self._lead)
        return Plan(commit, 1, ((len(commit), inputs),) if inputs else ())

    def _input(self, position: int, literal: int | None) -> int:
        """What the preview sees at a position."""
        if literal is not None:
            return literal
        return self._ahead[position].token if position in self._ahead else MASK

    def apply(self, outcome: Outcome) -> None:
        live = self._live
        live.state.accept(len(live.tokens) - live.state.length + len(self._lead))
        self._emit_forced(self._lead)
        if live.done:
            return
        start = len(live.tokens)
        token = live.choose(outcome.logits[0], outcome.largest[0])
        live.emit(token, live.logprob_of(token, outcome.logits[0]))
        filling = None
        if outcome.blocks:
            filling = _Filling(live, self._proposer, outcome.blocks[0], outcome.hidden[0], start, token)
            self._fill(filling, start)
        if not live.done:
            self._emit_forced(self._guide.run(limit=live.remaining))
        if not live.done:
            self._look_ahead(filling, start)

    def _emit_forced(self, run: list[int]) -> None:
        live = self._live
        for token in run:
            if not live.done and live.emit(token, TokenLogprob(token, 0.0, ((token, 0.0),))):
                live.accepted_by["forced"] += 1

    def _fill(self, filling: _Filling, start: int) -> None:
        """Extend the answer as far as literals and accepted guesses go."""
        live, policy = self._live, make_policy(self._live.request.decode)
        while not live.done and len(live.tokens) - start <= filling.rows:
            allowed = self._guide.after()
            index = len(live.tokens) - start
            if allowed.single is not None:
                filling.step(index, allowed.single)
                self._emit_forced([allowed.single])
                continue
            kept = self._ahead.get(len(live.tokens))
            guess = filling.guess(index, allowed)
            if kept is not None and kept.token in allowed:
                guess = kept
            elif guess is None or policy.pick([guess]) is None:
                return
            filling.step(index, guess.token)
            if live.emit(guess.token, guess.logprob):
                live.accepted_by["preview"] += 1

    def _look_ahead(self, filling: _Filling | None, start: int) -> None:
        """Keep what the policy is sure of beyond the first open position, and show the canvas."""
        live, policy = self._live, make_policy(self._live.request.decode)
        first = len(live.tokens)
        self._ahead = {p: guess for p, guess in self._ahead.items() if p > first}
        guesses = {}
        if filling is not None:
            for position in range(first + 1, start + filling.rows + 1):
                guess = filling.guess(position - start, None)
                if guess is not None and position not in self._ahead:
                    guesses[position] = guess
        while guesses and (picked := policy.pick(list(guesses.values()))) is not None:
            self._ahead[start + picked.index] = guesses.pop(start + picked.index)
        literals = dict(enumerate(self._skeleton.tokens, start))
        cells = list[Cell]()
        for position in range(first, first + min(self._block, live.remaining)):
            literal, guess = literals.get(position), self._ahead.get(position) or guesses.get(position)
            if literal is not None:
                cells.append(Cell(literal, "pinned", 1.0))
            elif guess is not None:
                cells.append(Cell(guess.token, "proposed", guess.confidence))
            else:
                cells.append(Cell(None, "masked"))
        live.show_canvas(cells)

    def receive(self, draft: Draft) -> None:
        raise AssertionError("diffusion asks for no drafts")


class _Filling:
    """What the preview rows of one pass say: row i predicts canvas position i + 1, and the chain knows what precedes."""

    def __init__(
        self, live: Live, proposer: Proposer, hidden_MD: Tensor, context_D: Tensor, start: int, first: int
    ) -> None:
        self._live = live
        self._start = start
        self._proposer = proposer
        self._hidden = hidden_MD
        self._context = context_D
        self._logits_MV = proposer.logits(hidden_MD).double().numpy()
        self._scale = 1.0 / (live.request.sampling.temperature or 1.0)
        self._previous: dict[int, int] = {0: first}
        self._carries: dict[int, Tensor] = {}

    @property
    def rows(self) -> int:
        """Preview rows, and the last canvas position that they predict."""
        return len(self._hidden)

    def step(self, index: int, token: int) -> None:
        """`token` stands at canvas position `index`: what follows may build on it."""
        self._previous[index] = token

    def guess(self, index: int, allowed: Allowed | None) -> Guess | None:
        """The likeliest token at a canvas position, among `allowed`; None where the row says nothing that can be used.

        Confidences are shares of what is allowed, at the request's temperature.
        """
        row = index - 1
        logits = self._logits_MV[row]
        ids = np.arange(len(logits)) if allowed is None else allowed.ids
        values = logits[ids]
        if not np.isfinite(values).all():
            return None
        scaled = values * self._scale
        log_total = float(scaled.max() + np.log(np.exp(scaled - scaled.max()).sum()))
        if len(ids) > CANDIDATES:
            best = np.sort(np.argpartition(values, -CANDIDATES)[-CANDIDATES:])
            ids, values = ids[best], values[best]
        missed = 1.0 - float(np.exp(values * self._scale - log_total).sum())
        log_tail = log_total + float(np.log(missed)) if missed > 1e-9 else -np.inf
        values = self._refined(row, ids, values)
        live = self._live
        token = live.sampler.choose(values, self._start + index, ids)
        mass, rest = probabilities(values * self._scale, log_tail)
        listed = mass[mass > 0]
        entropy = float(-(listed * np.log(listed)).sum()) - (rest * float(np.log(rest)) if rest > 0 else 0.0)
        count = live.request.decode.logprobs
        logprob = None if count is None else logprob_of(token, values * self._scale, count, ids, log_tail)
        return Guess(index, token, float(mass[np.searchsorted(ids, token)]), entropy, logprob)

    def _refined(self, row: int, ids: Ids, logits: Floats) -> Floats:
        """Candidates' logits through the chain, where the token before the predicted one is known."""
        previous = self._previous.get(row)
        if not self._proposer.refines or previous is None:
            return logits
        carry = self._carries.get(row - 1, torch.zeros_like(self._context))
        step, refined = self._proposer.refine(
            self._hidden[row : row + 1], [previous], self._context[None], carry[None], ids[None]
        )
        if not np.isfinite(refined).all():  # a broken adapter costs passes, never an answer
            return logits
        self._carries[row] = step[0]
        return refined[0]
