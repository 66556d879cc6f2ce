"""Diffusion under a constraint: a canvas that slides along the answer, with literals pinned and slots masked.

The canvas stands for the positions after the answer. Its first token is predicted by a commit row, exactly as AR would.
What follows is taken from left to right, in the same pass, as far as it is certain: literals, which the constraint
leaves no choice about, and guesses of preview rows that the policy accepts, each chosen from what the constraint allows
after all that stands before it. What isn't accepted is masked again. So every answer is a sentence of the constraint,
or the beginning of one. All slots whose places are known (`skeleton`) are previewed together.

How long a canvas is depends on how many of the request's own guesses were accepted so far, and on no timing.

Shapes: M preview rows, V vocabulary, C candidates, D hidden size.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..constrain import Allowed, Guide
from ..model import MASK
from . import costs
from .costs import Budget
from .drafts import Draft
from .events import Cell, TokenLogprob
from .plan import Outcome, Plan
from .policies import Guess, make_policy
from .proposals import CANDIDATES, ChainReading, Proposer, entropy, probabilities
from .request import Live
from .sampling import Floats, Ids, log_total, logprob_of
from .skeleton import Slots

PRICE = costs.PRIOR
"""Tokens that a preview row must be expected to save. Fixed: what is previewed may change what is answered."""

PRIOR = 0.5
"""Chance that the guess for a slot is accepted, before anything is known."""

MEMORY = 0.15
"""Weight of the latest guess."""


class StructuredDecoder:
    """Decodes one request by diffusion under its constraint, with canvases of at most `block` positions."""

    def __init__(self, live: Live, guide: Guide, slots: Slots, proposer: Proposer, block: int) -> None:
        self._live = live
        self._guide = guide
        self._slots = slots
        self._proposer = proposer
        self._block = block
        self._lead: list[int] = []
        self._skeleton: tuple[int | None, ...] = ()
        self._price = 0.0 if live.request.decode.free_rows else PRICE
        self._trust = PRIOR

    def plan(self, budget: Budget) -> Plan:
        live = self._live
        known = live.tokens[live.state.length :]
        # Literals at the start of an answer; later ones are emitted as soon as they are known.
        self._lead = self._guide.run(limit=min(live.remaining, max(0, budget.rows - len(known) - 1)))
        start = len(live.tokens) + len(self._lead)
        size = min(self._block, live.remaining - len(self._lead), live.max_positions - start, self._most())
        self._skeleton = self._slots.sketch(self._lead, size)
        self._skeleton = self._skeleton[: self._worthwhile()]
        inputs = tuple(MASK if token is None else token for token in self._skeleton[:-1])
        commit = (*known, *self._lead)
        return Plan(commit, 1, ((len(commit), inputs),) if inputs else ())

    def _most(self) -> int:
        """Positions beyond which no preview can pay, whatever stands there: all slots together promise too little."""
        return 1 + int(self._trust / max(1e-3, 1.0 - self._trust) / max(1e-3, self._price))

    def _worthwhile(self) -> int:
        """How many positions of the skeleton to preview: to the slot that promises most, less what its rows cost."""
        best, best_value, gained, reached = 1, 0.0, 0.0, 1.0
        for i, token in enumerate(self._skeleton[1:], 1):
            if token is None:
                reached *= self._trust
                gained += reached
                if gained - self._price * i > best_value:
                    best, best_value = i + 1, gained - self._price * i
        return best

    def apply(self, outcome: Outcome) -> None:
        live = self._live
        live.state.accept(len(live.tokens) - live.state.length + len(self._lead))
        self._emit_forced(self._lead)
        if live.done:
            return
        start = len(live.tokens)
        token = live.choose(outcome.logits[0], outcome.largest[0])
        live.emit(token, live.logprob_of(token, outcome.logits[0]))
        if outcome.blocks:
            self._fill(_Filling(live, self._proposer, outcome.blocks[0], outcome.hidden[0], start, token))
        else:
            self._trust += MEMORY / 4 * (PRIOR - self._trust)  # guesses that failed may be worth trying again later
        self._emit_forced(self._guide.run(limit=live.remaining) if not live.done else [])
        if not live.done:
            self._show(start)

    def _emit_forced(self, run: list[int]) -> None:
        live = self._live
        for token in run:
            if not live.done and live.emit(token, TokenLogprob(token, 0.0, ((token, 0.0),))):
                live.accepted_by["forced"] += 1

    def _fill(self, filling: _Filling) -> None:
        """Extend the answer as far as literals and accepted guesses go."""
        live, policy = self._live, make_policy(self._live.request.decode)
        while not live.done and (index := len(live.tokens) - filling.start) <= filling.rows:
            allowed = self._guide.after()
            if allowed.single is not None:
                filling.step(index, allowed.single)
                self._emit_forced([allowed.single])
                continue
            guess = filling.guess(index, allowed)
            accepted = guess is not None and policy.pick([guess]) is not None
            self._trust += MEMORY * (accepted - self._trust)
            if guess is None or not accepted:
                return
            filling.step(index, guess.token)
            if live.emit(guess.token, guess.logprob):
                live.accepted_by["preview"] += 1

    def _show(self, start: int) -> None:
        """What stands after the answer: literals where they are thought to be, and masks."""
        after = self._skeleton[len(self._live.tokens) - start :]
        self._live.show_canvas([Cell(t, "masked") if t is None else Cell(t, "pinned", 1.0) for t in after])

    def receive(self, draft: Draft) -> None:
        raise AssertionError("diffusion asks for no drafts")


class _Filling:
    """What the preview rows of one pass say: row i predicts canvas position i + 1, and the chain knows what precedes.

    `start`: the position of the canvas; its token there is `first`. `context` [D]: the commit row before it.
    """

    def __init__(
        self, live: Live, proposer: Proposer, hidden_MD: Tensor, context_D: Tensor, start: int, first: int
    ) -> None:
        self._live = live
        self._proposer = proposer
        self._hidden = hidden_MD
        self._chain = ChainReading(proposer, hidden_MD, context_D)
        self.start = start
        self._scale = 1.0 / (live.request.sampling.temperature or 1.0)
        self._previous: dict[int, int] = {0: first}

    @property
    def rows(self) -> int:
        """Preview rows, and the last canvas position that they predict."""
        return len(self._hidden)

    def step(self, index: int, token: int) -> None:
        """`token` stands at canvas position `index`: what follows may build on it."""
        self._previous[index] = token

    def guess(self, index: int, allowed: Allowed) -> Guess | None:
        """The likeliest of the tokens that are allowed at a canvas position; None if the row says nothing usable.

        Confidences are shares of what is allowed, at the request's temperature.
        """
        row, live = index - 1, self._live
        ids, logits = allowed.ids, self._logits(row, allowed.ids)
        if not np.isfinite(logits).all():  # a broken adapter costs passes, never an answer
            return None
        log_tail = -np.inf
        if len(ids) > CANDIDATES:
            order = np.argpartition(logits, -CANDIDATES)
            log_tail = log_total(logits[order[:-CANDIDATES]] * self._scale)
            best = np.sort(order[-CANDIDATES:])
            ids, logits = ids[best], logits[best]
        if (refined := self._chain.refined(row, self._previous.get(row), ids)) is not None:
            logits = refined
        token = live.sampler.choose(logits, self.start + index, ids)
        mass, missed = probabilities(logits * self._scale, log_tail)
        count = live.request.decode.logprobs
        logprob = None if count is None else logprob_of(token, logits * self._scale, count, ids, log_tail)
        return Guess(index, token, float(mass[np.searchsorted(ids, token)]), entropy(mass, missed), logprob)

    def _logits(self, row: int, ids: Ids) -> Floats:
        """Plain logits of `ids` [n]: where few are asked for, the head's other rows aren't read."""
        hidden_1D = self._hidden[row : row + 1]
        if len(ids) <= CANDIDATES:
            return np.asarray((self._proposer.head_rows(ids) @ hidden_1D[0]).double().numpy())
        return np.asarray(self._proposer.logits(hidden_1D)[0].double().numpy()[ids])
