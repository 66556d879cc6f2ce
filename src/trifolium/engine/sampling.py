"""Choosing a token from logits: bias -> penalties -> temperature -> top-k -> top-p -> min-p -> keyed Gumbel-max.

Noise is a pure function of (seed, position, token id), so a draft and the row that verifies it make the same choice
from the same logits, in any mode and any batch. With x the id-th 64-bit output of Philox4x64-10 (Salmon et al. 2011,
"Parallel random numbers: as easy as 1, 2, 3") under the key (seed, position), counting blocks from 1:

    u = (floor(x / 2^12) + 1/2) / 2^52,    g = -log(-log u),    token = argmax(logit / temperature + g)

which samples from softmax(logit / temperature) (Gumbel 1954; Maddison et al. 2014, arXiv:1411.0030). Ties go to the
lowest id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..config import SamplingParams
from .events import TokenLogprob

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


def keyed_bits(seed: int, position: int, size: int) -> npt.NDArray[np.uint64]:
    """The first `size` 64-bit outputs of Philox4x64-10 under the key (seed, position)."""
    key = np.array([seed, position], dtype=np.uint64)
    return np.random.Philox(key=key).random_raw(size)


def gumbel(bits: npt.NDArray[np.uint64]) -> Floats:
    """Standard Gumbel noise, one value for each 64-bit integer; finite for all of them."""
    uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(-np.log(-np.log(uniform)))


def softmax(logits: Floats) -> Floats:
    """exp(l) / sum(exp(l)), shifted by the largest."""
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def log_total(logits: Floats, log_tail: float = -np.inf) -> float:
    """Log of the sum of exp(l), and of others whose sum's log is known; shifted by the largest."""
    shift = max(float(logits.max()), log_tail)
    return shift + float(np.log(np.exp(logits - shift).sum() + np.exp(log_tail - shift)))


def keep_top_k(logits: Floats, k: int) -> Ids:
    """Indices, ascending, of the k largest logits; among equal ones the lowest indices stay."""
    if k >= len(logits):
        return np.arange(len(logits))
    kth = np.partition(logits, -k)[-k]
    above = np.flatnonzero(logits > kth)
    ties = np.flatnonzero(logits == kth)[: k - len(above)]
    return np.sort(np.concatenate((above, ties)))


def keep_top_p(logits: Floats, top_p: float) -> Ids:
    """Indices, ascending, of the fewest most probable tokens whose mass reaches `top_p` (Holtzman et al. 2019).

    Tokens below (1 - top_p) / size hold less than 1 - top_p together and can't be in the set: only the rest is sorted.
    """
    p = softmax(logits)
    likely = np.flatnonzero(p >= (1.0 - top_p) / len(p))
    order = likely[np.argsort(-p[likely], kind="stable")]
    count = int(np.searchsorted(np.cumsum(p[order]), top_p, side="left")) + 1
    return np.sort(order[:count])


def keep_min_p(logits: Floats, min_p: float) -> Ids:
    """Indices of tokens at least `min_p` times as probable as the most probable one."""
    return np.flatnonzero(logits >= logits.max() + np.log(min_p))


def filtered(logits: Floats, params: SamplingParams) -> tuple[Ids, Floats]:
    """Indices that survive temperature, top-k, top-p and min-p, ascending, and their logits over the temperature."""
    values = logits / params.temperature
    kept = np.arange(len(values))
    if 0 < params.top_k < len(values):
        kept = keep_top_k(values, params.top_k)
    if params.top_p < 1.0:
        kept = kept[keep_top_p(values[kept], params.top_p)]
    if params.min_p > 0.0:
        kept = kept[keep_min_p(values[kept], params.min_p)]
    return kept, values[kept]


def logprob_of(
    token: int, logits: Floats, count: int, ids: Ids | None = None, log_tail: float = -np.inf
) -> TokenLogprob:
    """A token's log-softmax among logits [n], of all tokens or of `ids` (ascending), and that of the `count` largest.

    `log_tail`: log of the exp-sum of tokens that the logits leave out. The token must be among them.
    """
    total = log_total(logits, log_tail)
    count = min(count, len(logits))
    top = np.argpartition(-logits, count - 1)[:count] if count else np.empty(0, np.int64)
    top = top[np.argsort(-logits[top], kind="stable")]
    names = top if ids is None else ids[top]
    at = token if ids is None else int(np.searchsorted(ids, token))
    return TokenLogprob(
        token,
        float(logits[at]) - total,
        tuple((int(i), float(logits[t]) - total) for i, t in zip(names, top, strict=True)),
    )


class Sampler:
    """Chooses one request's tokens. `push` every token of the answer, so that penalties know the history."""

    def __init__(self, params: SamplingParams, prompt: Iterable[int], vocab_size: int) -> None:
        self.params = params
        self.vocab_size = vocab_size
        self._answer: Counter[int] = Counter()
        self._seen = set(prompt)
        self._noise: dict[int, npt.NDArray[np.uint64]] = {}
        p = params
        self._bias_ids = np.array(sorted(p.logit_bias), dtype=np.int64)
        self._bias = np.array([p.logit_bias[token] for token in self._bias_ids.tolist()], dtype=np.float64)
        self._penalised = p.repetition_penalty != 1.0 or p.presence_penalty != 0.0 or p.frequency_penalty != 0.0
        self.plain_greedy = p.temperature == 0.0 and not self._penalised and not len(self._bias)
        """Whether every choice is just the largest logit."""

    def push(self, token: int, position: int) -> None:
        """Record that `token` is in the answer at `position`; noise up to there is no longer needed."""
        self._answer[token] += 1
        self._seen.add(token)
        self._noise = {p: bits for p, bits in self._noise.items() if p > position}

    def choose(self, logits: Floats, position: int, ids: Ids | None = None, ahead: Sequence[int] = ()) -> int:
        """The token at `position` from logits [n], of all tokens or of those in `ids` (ascending).

        `ahead`: tokens that stand between the recorded history and `position` (proposals, for drafts).
        """
        values = self._adjusted(logits, ids, ahead)
        if self.params.temperature == 0.0:
            index = int(np.argmax(values))
        else:
            kept, values = filtered(values, self.params)
            bits = self._bits(position)
            noise = gumbel(bits[kept if ids is None else ids[kept]])
            index = int(kept[np.argmax(values + noise)])
        return index if ids is None else int(ids[index])

    def ranked(
        self, logits: Floats, position: int, ids: Ids, ahead: Sequence[int], count: int
    ) -> list[tuple[int, float]]:
        """The `count` likeliest choices among `ids` (ascending) at `position`, best first, and how likely each one is.

        The first is what `choose` would choose. Likelihoods are the softmax of what the choice maximises: near 1 where
        the noise has decided, spread where a small error of the logits would change the choice.
        """
        values = self._adjusted(logits, ids, ahead)
        if self.params.temperature > 0.0:
            kept, values = filtered(values, self.params)
            ids = ids[kept]
            values = values + gumbel(self._bits(position)[ids])
        order = np.argsort(-values, kind="stable")[:count]
        shares = softmax(values)
        return [(int(ids[i]), float(shares[i])) for i in order]

    def _bits(self, position: int) -> npt.NDArray[np.uint64]:
        if position not in self._noise:
            self._noise[position] = keyed_bits(self.params.seed, position, self.vocab_size)
        return self._noise[position]

    def _adjusted(self, logits: Floats, ids: Ids | None, ahead: Sequence[int]) -> Floats:
        """The logits of all tokens, or of `ids`, after bias and penalties."""
        if len(self._bias):
            logits = logits.copy()
            if ids is None:
                logits[self._bias_ids] += self._bias
            else:
                _, here, there = np.intersect1d(ids, self._bias_ids, assume_unique=True, return_indices=True)
                logits[here] += self._bias[there]
        return self._penalise(logits, ids, ahead) if self._penalised else logits

    def _penalise(self, logits: Floats, ids: Ids | None, ahead: Sequence[int]) -> Floats:
        """Repetition penalty over prompt and answer (Keskar et al. 2019, arXiv:1909.05858); presence and frequency
        penalties over the answer, as OpenAI defines them."""
        p = self.params
        counts = self._answer + Counter(ahead) if ahead else self._answer
        seen = self._seen.union(ahead) if ahead else self._seen
        if ids is None:
            where = tokens = np.fromiter(seen, np.int64, len(seen))
        else:
            where = np.array([i for i, token in enumerate(ids.tolist()) if token in seen], dtype=np.int64)
            tokens = ids[where]
        n = np.array([counts[token] for token in tokens.tolist()], dtype=np.float64)
        values = logits.copy()
        old = values[where]
        new = np.where(old > 0, old / p.repetition_penalty, old * p.repetition_penalty)
        values[where] = new - p.frequency_penalty * n - p.presence_penalty * (n > 0)
        return values
