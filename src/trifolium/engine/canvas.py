"""Diffusion decoding: a block of masks is filled over a few passes, then committed while the next block is previewed.

The canvas stands for positions start .. start + B - 1. Its first token is predicted by the commit row of the token
before it, exactly as AR would, and is accepted at once. Row i of the canvas (its token, or a mask) predicts token
i + 1. Between blocks, one pass commits the finished block causally and previews the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ..model import MASK
from .costs import Budget
from .drafts import Draft
from .events import Cell, TokenLogprob
from .plan import Outcome, Plan
from .policies import Guess, make_policy, most_confident
from .proposals import ChainReading, Proposer, Readout, entropy, probabilities
from .request import Live
from .sampling import logprob_of

REMASK_BELOW = 0.25
"""With `remask`, a token is masked again if its probability falls below this share of what it was accepted with."""


@dataclass
class Canvas:
    """One block. `emitted`: how many of its first tokens the user has; `remasked`: positions that had their chance.

    `context` [D]: the final hidden vector of the commit row before the block, which the chain reads. `logprobs`: what
    was said of each token when it was accepted, if the request asked for it.
    """

    tokens: list[int | None]
    confidences: list[float]
    logprobs: list[TokenLogprob | None]
    context: Tensor | None = None
    emitted: int = 0
    remasked: set[int] = field(default_factory=set)

    @classmethod
    def masked(cls, size: int) -> Canvas:
        return cls([None] * size, [0.0] * size, [None] * size)

    def put(self, index: int, token: int, confidence: float, logprob: TokenLogprob | None = None) -> None:
        """Fill one position."""
        self.tokens[index] = token
        self.confidences[index] = confidence
        self.logprobs[index] = logprob

    def end(self, eos_ids: frozenset[int]) -> int:
        """How many positions matter: those after an end token don't."""
        return next((i + 1 for i, token in enumerate(self.tokens) if token in eos_ids), len(self.tokens))


class DiffusionDecoder:
    """Decodes one request by diffusion, in blocks of `block` positions."""

    def __init__(self, live: Live, proposer: Proposer, block: int) -> None:
        self._live = live
        self._proposer = proposer
        self._block = block
        self._canvas: Canvas | None = None

    def plan(self, budget: Budget) -> Plan:
        live = self._live
        if self._canvas is None:
            self._canvas = Canvas.masked(min(self._block, live.remaining))
        # Everything final that isn't committed: nothing, between the first and the last pass of a block.
        commit = tuple(live.tokens[live.state.length :]) if self._canvas.tokens[0] is None else ()
        inputs = tuple(MASK if token is None else token for token in self._canvas.tokens[:-1])
        return Plan(commit, min(1, len(commit)), ((len(commit), inputs),) if inputs else ())

    def apply(self, outcome: Outcome) -> None:
        live, canvas = self._live, self._canvas
        assert canvas is not None
        gained = False
        if canvas.tokens[0] is None:
            live.state.accept(len(live.tokens) - live.state.length)
            canvas.context = outcome.hidden[0]
            if live.sampler.plain_greedy:
                token = outcome.largest[0]
            else:
                token = live.sampler.choose(outcome.logits[0].double().numpy(), live.position + 1)
            canvas.put(0, token, 1.0, live.logprob_of(token, outcome.logits[0]))
            gained = True
        guesses = _Filling(live, canvas, self._proposer, outcome.blocks[0]).run(gained) if outcome.blocks else {}
        self._emit(canvas)
        if self._canvas is not None and not live.done:
            self._show(canvas, guesses)

    def _emit(self, canvas: Canvas) -> None:
        """Give out the finished prefix, or with `remask` the finished block; then the next block may start."""
        live = self._live
        end = canvas.end(live.eos_ids)
        whole = None not in canvas.tokens[:end]
        if whole or not live.request.decode.remask:
            while canvas.emitted < end and not live.done and (token := canvas.tokens[canvas.emitted]) is not None:
                live.emit(token, canvas.logprobs[canvas.emitted])
                canvas.emitted += 1
        if whole:
            self._canvas = None

    def _show(self, canvas: Canvas, guesses: dict[int, Guess]) -> None:
        cells = []
        for i in range(canvas.emitted, len(canvas.tokens)):
            token = canvas.tokens[i]
            if token is not None:
                cells.append(
                    Cell(token, "proposed" if self._live.request.decode.remask else "accepted", canvas.confidences[i])
                )
            elif i in guesses:
                cells.append(Cell(guesses[i].token, "proposed", guesses[i].confidence))
            else:
                cells.append(Cell(None, "masked"))
        self._live.show_canvas(cells)

    def receive(self, draft: Draft) -> None:
        raise AssertionError("diffusion asks for no drafts")


class _Filling:
    """One pass over a canvas: guess what is masked, accept by the policy, let each acceptance inform its neighbour."""

    def __init__(self, live: Live, canvas: Canvas, proposer: Proposer, hidden_MD: Tensor) -> None:
        self._live = live
        self._canvas = canvas
        temperature = live.request.sampling.temperature or 1.0
        self._scale = 1.0 / temperature
        self._readout: Readout = proposer.read(hidden_MD, temperature)
        self._chain = ChainReading(proposer, hidden_MD, canvas.context)

    def run(self, gained: bool) -> dict[int, Guess]:
        """Fill what can be filled, at least one position unless the pass has `gained` one; the guesses left over."""
        canvas, decode = self._canvas, self._live.request.decode
        if decode.remask:
            self._remask()
        guesses: dict[int, Guess] = {}
        for i in range(1, canvas.end(self._live.eos_ids)):
            guess = self._guess(i)  # also where the token is known: the chain's next step builds on it
            if canvas.tokens[i] is None:
                guesses[i] = guess
        policy = make_policy(decode)
        while guesses:
            picked = policy.pick(list(guesses.values()))
            if picked is None and not gained:
                picked = most_confident(list(guesses.values()))
            if picked is None:
                break
            gained = True
            canvas.put(picked.index, picked.token, picked.confidence, picked.logprob)
            end = canvas.end(self._live.eos_ids)
            guesses = {i: guess for i, guess in guesses.items() if i != picked.index and i < end}
            if picked.index + 1 in guesses:
                guesses[picked.index + 1] = self._guess(picked.index + 1)
        return guesses

    def _remask(self) -> None:
        """Mask again what the fuller canvas no longer supports, every position at most once, so that blocks end."""
        canvas = self._canvas
        for i in range(1, len(canvas.tokens)):
            token = canvas.tokens[i]
            if token is None or i in canvas.remasked:
                continue
            ids = self._readout.ids[i - 1]
            mass, _ = probabilities(self._readout.logits[i - 1], self._readout.log_tail(i - 1))
            at = int(np.searchsorted(ids, token))
            now = float(mass[at]) if at < len(ids) and ids[at] == token else 0.0
            if now < REMASK_BELOW * canvas.confidences[i]:
                canvas.tokens[i] = None
                canvas.remasked.add(i)

    def _guess(self, index: int) -> Guess:
        """The likeliest token at a canvas position, through the chain where the token before it is known."""
        row = index - 1
        ids, logits = self._readout.ids[row], self._readout.logits[row]
        if (refined := self._chain.refined(row, self._canvas.tokens[row], ids)) is not None:
            logits = refined * self._scale
        live = self._live
        ahead = [token for token in self._canvas.tokens[self._canvas.emitted :] if token is not None]
        token = live.sampler.choose(logits / self._scale, live.state.length + index, ids, ahead)
        mass, rest = probabilities(logits, self._readout.log_tail(row))
        confidence = float(mass[np.searchsorted(ids, token)])
        count = live.request.decode.logprobs
        logprob = None if count is None else logprob_of(token, logits, count, ids, self._readout.log_tail(row))
        return Guess(index, token, confidence, entropy(mass, rest), logprob)
