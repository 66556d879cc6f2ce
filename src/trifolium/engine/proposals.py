"""Proposals from preview rows: the head once over all rows, then the chain over each row's likeliest candidates.

Shapes: M preview rows, D hidden size, V vocabulary, C candidates, R requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..constrain import Guide
from ..model import Transformer
from ..model.adapter import ChainProducts
from ..ops.formats import INT4
from ..ops.linear import pack_weight
from ..ops.native.packed import PackedWeight
from .drafts import Draft, GrowingDraft
from .sampling import Floats, Ids, Sampler
from .tree import MIN_REACH

CANDIDATES = 64
"""The chain only chooses among this many tokens a row: the head runs once, not once for each step of the chain."""

DRAFT_VOCABULARY = 1 << 14
"""Drafts come from the first tokens of larger vocabularies: BPE numbers its merges by how common they are.

Nineteen of twenty tokens of an answer are among them, and the head costs a third or less.
"""

WIDTH = 4
"""Alternatives after one token."""

BEAM = 6
"""Tokens of one depth that grow on."""


@dataclass(frozen=True)
class Ask:
    """Preview rows [m, D] whose first one predicts `position`; `previous` is the token before that.

    `context` [D]: the final hidden vector of the commit row that the rows' context ends with. `guide`: what the answer
    must follow.
    """

    sampler: Sampler
    hidden: Tensor
    context: Tensor
    previous: int
    position: int
    guide: Guide | None = None


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


def entropy(mass: Floats, rest: float) -> float:
    """Entropy in nats of probabilities [C] and of what they miss, counted as one token."""
    listed = mass[mass > 0]
    return float(-(listed * np.log(listed)).sum()) - (rest * float(np.log(rest)) if rest > 0 else 0.0)


def _packed(weight: Tensor, dtype: torch.dtype) -> PackedWeight:
    return pack_weight(weight.detach(), None, dtype)


class Proposer:
    """Turns hidden vectors of preview rows into tokens with confidences."""

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._chain = None if model.adapter is None else model.adapter.chain

    def prepare(self) -> None:
        """Pack what proposals multiply with, if that wasn't done before; else the first ones would seem to be dear."""
        _ = self._head, self._products

    @cached_property
    def _head(self) -> PackedWeight | None:
        """The head's rows of common tokens, in four bits."""
        head = self._model.head.weight
        small = len(head) <= 2 * DRAFT_VOCABULARY
        return None if small or not self._model.row_exact else _packed(head[:DRAFT_VOCABULARY], INT4)

    @cached_property
    def _products(self) -> ChainProducts | None:
        """The chain's products as the kernels have them, where there are kernels."""
        if self._chain is None or not self._model.row_exact:
            return None
        return ChainProducts(*(_packed(weight, torch.int8) for weight in (self._chain.up, self._chain.down)))

    def read(self, hidden_MD: Tensor, temperature: float = 1.0, *, drafts: bool = False) -> Readout:
        """Candidates of every row under softmax(logits / temperature); `drafts`: among common tokens will do."""
        logits = self._head(hidden_MD) if drafts and self._head is not None else self.logits(hidden_MD)
        if temperature != 1.0:
            logits = logits / temperature
        count = min(CANDIDATES, logits.shape[-1])
        ids = logits.topk(count, sorted=False).indices.sort(-1).values
        return Readout(ids.numpy(), logits.gather(-1, ids).double().numpy(), logits.logsumexp(-1).double().numpy())

    def logits(self, hidden_MD: Tensor) -> Tensor:
        """Plain logits of preview rows [M, V]."""
        return self._model.logits(hidden_MD, exact=False)

    def head_rows(self, ids_C: Ids) -> Tensor:
        """The head's rows of some tokens [C, D], in float32."""
        return self._model.head_rows(torch.from_numpy(ids_C))

    @property
    def refines(self) -> bool:
        """Whether there is a chain."""
        return self._chain is not None

    def refine(
        self, hidden_RD: Tensor, previous: Sequence[int], context_RD: Tensor, carry_RD: Tensor, ids_RC: Ids
    ) -> tuple[Tensor, Floats]:
        """One step of the chain: (s_j [R, D], refined logits of the candidates [R, C]), see `model.adapter.Chain`."""
        assert self._chain is not None
        carry = self._chain.step(
            hidden_RD, self._model.embed(torch.tensor(previous)), context_RD, carry_RD, self._products
        )
        rows_RCD = self._model.head_rows(torch.from_numpy(ids_RC))
        logits = torch.bmm(rows_RCD, (hidden_RD + carry)[:, :, None])[:, :, 0]
        return carry, logits.double().numpy()

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        """A tree of drafts for every ask, grown from left to right; every token knows the ones that it follows.

        Proposals use the request's own sampler: with sampling, they carry the noise that the target will carry. At each
        depth the BEAM likeliest tokens grow on.
        """
        if not asks:
            return []
        readout = self.read(torch.cat([ask.hidden for ask in asks]), drafts=True)
        starts = np.cumsum([0, *(len(ask.hidden) for ask in asks)])
        trees = [GrowingDraft() for _ in asks]
        frontier = [_Leaf(i, -1, ask.previous, 1.0, torch.zeros_like(ask.context)) for i, ask in enumerate(asks)]
        for depth in range(max(len(ask.hidden) for ask in asks)):
            active = [leaf for leaf in frontier if depth < len(asks[leaf.ask].hidden)]
            if not active:
                break
            rows = np.array([starts[leaf.ask] + depth for leaf in active])
            logits = readout.logits[rows]
            carries = [leaf.carry for leaf in active]
            if self.refines:
                hidden = torch.stack([asks[leaf.ask].hidden[depth] for leaf in active])
                contexts = torch.stack([asks[leaf.ask].context for leaf in active])
                previous = [leaf.token for leaf in active]
                carry, logits = self.refine(hidden, previous, contexts, torch.stack(carries), readout.ids[rows])
                carries = list(carry)
            grown = list[_Leaf]()
            for leaf, row, values, carry in zip(active, rows.tolist(), logits, carries, strict=True):
                if np.isfinite(values).all():  # a broken adapter costs drafts, never an answer
                    grown += self._grow(asks[leaf.ask], trees[leaf.ask], leaf, readout, row, values, carry)
            frontier = [
                leaf
                for i in range(len(asks))
                for leaf in sorted((leaf for leaf in grown if leaf.ask == i), key=lambda leaf: -leaf.reach)[:BEAM]
            ]
        return [tree.draft("preview") for tree in trees]

    @staticmethod
    def _grow(
        ask: Ask, tree: GrowingDraft, leaf: _Leaf, readout: Readout, row: int, values: Floats, carry: Tensor
    ) -> list[_Leaf]:
        """The likeliest tokens after a leaf, added to its tree; under a constraint the likeliest that it allows."""
        ids, path = readout.ids[row], tree.path(leaf.node)
        mass, rest = probabilities(values, readout.log_tail(row))
        if ask.guide is not None:
            allowed = ask.guide.after(path)
            if allowed.ended:
                return []
            if allowed.single is not None:
                node = tree.add(allowed.single, 1.0, leaf.node, forced=True)
                return [_Leaf(leaf.ask, node, allowed.single, leaf.reach, carry)]
            kept = allowed.among(ids)
            if not kept.any():
                return []
            # Of the tokens that aren't listed, as many as are allowed at all are taken to hold their part of the rest.
            ids, values, mass = ids[kept], values[kept], mass[kept]
            missed = rest * (allowed.count - len(ids)) / max(1, ask.sampler.vocab_size - len(kept))
            mass = mass / (mass.sum() + missed)
        grown = []
        for token, share in ask.sampler.ranked(values, ask.position + len(path), ids, path, WIDTH):
            confidence = share * float(mass.sum())
            if leaf.reach * confidence >= MIN_REACH:
                node = tree.add(token, confidence, leaf.node)
                grown.append(_Leaf(leaf.ask, node, token, leaf.reach * confidence, carry))
        return grown


@dataclass(frozen=True)
class _Leaf:
    """Where a tree may grow on: a node of ask number `ask`, its token, its chance, and the chain's last output."""

    ask: int
    node: int
    token: int
    reach: float
    carry: Tensor


class ChainReading:
    """The chain along one canvas: what a row says, knowing the token before the one that it predicts.

    `hidden` [M, D]: the canvas' preview rows. `context` [D]: the commit row before it, None while there is none.
    """

    def __init__(self, proposer: Proposer, hidden_MD: Tensor, context_D: Tensor | None) -> None:
        self._proposer = proposer
        self._hidden = hidden_MD
        self._context = context_D
        self._carries: dict[int, Tensor] = {}

    def refined(self, row: int, previous: int | None, ids_C: Ids) -> Floats | None:
        """Plain logits [C] of a row's candidates; None where the chain has nothing to say, or nothing finite."""
        if not self._proposer.refines or previous is None or self._context is None:
            return None
        carry = self._carries.get(row - 1, torch.zeros_like(self._hidden[0]))
        step, refined = self._proposer.refine(
            self._hidden[row : row + 1], [previous], self._context[None], carry[None], ids_C[None]
        )
        if not np.isfinite(refined).all():
            return None
        self._carries[row] = step[0]
        return np.asarray(refined[0])
