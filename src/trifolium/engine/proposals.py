"""Proposals from preview rows: the head once over all rows, then the chain over each row's likeliest candidates.

Shapes: M preview rows, D hidden size, V vocabulary, C candidates, R requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..model import Transformer
from .sampling import Floats, Ids, Sampler

CANDIDATES = 64
"""The chain only chooses among this many tokens a row: the head runs once, not once for each step of the chain."""

MIN_REACH = 0.02
"""Proposing stops where the chance that everything up to here is accepted falls below this."""


@dataclass(frozen=True)
class Ask:
    """Preview rows [m, D] whose first one predicts `position`; `previous` is the token before that.

    `context` [D]: the final hidden vector of the commit row that the rows' context ends with.
    """

    sampler: Sampler
    hidden: Tensor
    context: Tensor
    previous: int
    position: int


@dataclass(frozen=True)
class Readout:
    """The candidates of M rows: ids [M, C] ascending, their plain logits [M, C], and log of all tokens' exp-sum [M]."""

    ids: Ids
    logits: Floats
    log_total: Floats

    def log_tail(self, row: int) -> float:
        """Log of the exp-sum of the tokens that a row's candidates miss; -inf if they miss none."""
        missed = 1.0 - float(np.exp(self.logits[row] - self.log_total[row]).sum())
        return float(self.log_total[row]) + math.log(missed) if missed > 1e-9 else -math.inf


def probabilities(logits: Floats, log_tail: float) -> tuple[Floats, float]:
    """Probabilities of candidates with `logits` [C] beside others whose exp-sum's log is known; and the others' own."""
    shift = max(float(logits.max()), log_tail)
    weights = np.exp(logits - shift)
    rest = math.exp(log_tail - shift)
    total = float(weights.sum()) + rest
    return weights / total, rest / total


class Proposer:
    """Turns hidden vectors of preview rows into tokens with confidences."""

    def __init__(self, model: Transformer, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._chain = None if model.adapter is None else model.adapter.chain

    def read(self, hidden_MD: Tensor, temperature: float = 1.0) -> Readout:
        """Candidates of every row under softmax(logits / temperature)."""
        logits = self._model.logits(hidden_MD, exact=False)[:, : self._vocab_size]
        if temperature != 1.0:
            logits = logits / temperature
        count = min(CANDIDATES, self._vocab_size)
        ids = logits.topk(count, sorted=False).indices.sort(-1).values
        return Readout(ids.numpy(), logits.gather(-1, ids).double().numpy(), logits.logsumexp(-1).double().numpy())

    @property
    def refines(self) -> bool:
        """Whether there is a chain."""
        return self._chain is not None

    def refine(
        self, hidden_RD: Tensor, previous: Sequence[int], context_RD: Tensor, carry_RD: Tensor, ids_RC: Ids
    ) -> tuple[Tensor, Floats]:
        """One step of the chain: (s_j [R, D], refined logits of the candidates [R, C]), see `model.adapter.Chain`."""
        assert self._chain is not None
        carry = self._chain.step(hidden_RD, self._model.embed(torch.tensor(previous)), context_RD, carry_RD)
        rows_RCD = self._model.head_rows(torch.from_numpy(ids_RC))
        logits = torch.bmm(rows_RCD, (hidden_RD + carry)[:, :, None])[:, :, 0]
        return carry, logits.double().numpy()

    def propose(self, asks: Sequence[Ask]) -> list[tuple[list[int], list[float]]]:
        """Tokens and confidences for every ask, chosen from left to right, each knowing the ones before it.

        Proposals use the request's own sampler: with sampling, they carry the noise that the target will carry.
        """
        if not asks:
            return []
        readout = self.read(torch.cat([ask.hidden for ask in asks]))
        starts = np.cumsum([0, *(len(ask.hidden) for ask in asks)])
        tokens: list[list[int]] = [[] for _ in asks]
        confidences: list[list[float]] = [[] for _ in asks]
        reach = [1.0] * len(asks)
        context = [ask.context for ask in asks]
        carries = [torch.zeros_like(vector) for vector in context]
        for j in range(max(len(ask.hidden) for ask in asks)):
            active = [i for i, ask in enumerate(asks) if j < len(ask.hidden) and reach[i] >= MIN_REACH]
            if not active:
                break
            rows = starts[active] + j
            logits = readout.logits[rows]
            if self.refines:
                hidden = torch.stack([asks[i].hidden[j] for i in active])
                previous = [tokens[i][-1] if j else asks[i].previous for i in active]
                contexts, before = (torch.stack([vectors[i] for i in active]) for vectors in (context, carries))
                carry, logits = self.refine(hidden, previous, contexts, before, readout.ids[rows])
                for i, vector in zip(active, carry, strict=True):
                    carries[i] = vector
            for i, row, values in zip(active, rows.tolist(), logits, strict=True):
                if not np.isfinite(values).all():  # a broken adapter costs drafts, never an answer
                    reach[i] = 0.0
                    continue
                ids = readout.ids[row]
                token = asks[i].sampler.choose(values, asks[i].position + j, ids, tokens[i])
                mass, _ = probabilities(values, readout.log_tail(row))
                confidence = float(mass[np.searchsorted(ids, token)])
                tokens[i].append(token)
                confidences[i].append(confidence)
                reach[i] *= confidence
        return list(zip(tokens, confidences, strict=True))
