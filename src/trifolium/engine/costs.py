"""What rows cost, learned from the passes themselves, and what they must bring to be worth it.

Rows decide how fast an answer comes, never what it says: timings may steer them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of rows that costs are kept for; between them they are interpolated."""

PRIOR = 0.12
"""What each further row adds to the cost of a pass of one, until passes say otherwise."""

MEMORY = 0.1
"""Weight of the latest pass in an average."""

CAUTION = 1.35
"""Rows must promise this many times what they cost: both are estimates, and a pass without them is a sure thing."""

COLD = 2
"""Measurements that may have met cold caches."""


@dataclass
class Average:
    """A running mean that forgets; one outlier (another program took the processor) moves it little.

    Of the first measurements the smallest counts: caches were cold.
    """

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Take one more measurement."""
        self.count += 1
        if self.count <= COLD:
            self.value = value if self.count == 1 else min(value, self.value)
        else:
            self.value += (min(value, 2 * self.value) - self.value) * MEMORY


@dataclass
class PassCosts:
    """Seconds of a pass by its number of rows, of proposals, and how many tokens a second brings just now."""

    _seconds: dict[int, Average] = field(default_factory=dict)
    _curve: tuple[list[int], list[float]] = field(default_factory=lambda: ([], []))
    _tokens: float = 0.0
    _spent: float = 0.0
    _proposals: Average = field(default_factory=Average)
    _aftermath: Average = field(default_factory=Average)
    _just_proposed: int = 0
    _memory: dict[int, float] = field(default_factory=dict)
    rate: float = 0.0
    """Tokens per second of passes, lately; 0 before any were brought."""

    @property
    def known(self) -> bool:
        """Whether anything was observed."""
        return bool(self._seconds)

    def observe(
        self, rows: int, seconds: float, tokens: float, share: float = 1.0, proposals: int = 0, proposing: float = 0.0
    ) -> None:
        """A pass of `rows` rows took so long and brought `tokens`; `proposals` after it took `proposing`.

        `share` of its rows was decoding; others read prompts, whose time no draft could have saved. A share of 0 says
        something of costs only.
        """
        size, before = _near(rows), self._just_proposed
        self._just_proposed = proposals
        if before and size in self._seconds:
            # Proposals leave cold caches behind: what they add to the next pass is their price, not the rows'.
            self._aftermath.add(max(0.0, seconds - self.seconds(rows)) / before)
        else:
            self._seconds.setdefault(size, Average()).add(seconds)
        # Decaying sums, not averages of each: when many requests come at once, the ratio is right after a few passes.
        self._tokens = (1 - MEMORY) * self._tokens + tokens
        self._spent = (1 - MEMORY) * self._spent + seconds * share + proposing
        if proposals:
            self._proposals.add(proposing / proposals)
        known = sorted(self._seconds)
        self._curve = known, _rising([self._seconds[size] for size in known])
        self._memory.clear()
        self.rate = self._tokens / self._spent if self._spent else 0.0

    def seconds(self, rows: int) -> float:
        """What a pass of so many rows is expected to take; 0 before anything was observed. Never falls with rows."""
        if rows not in self._memory:  # every request of a pass asks for much the same
            self._memory[rows] = self._estimate(rows)
        return self._memory[rows]

    def _estimate(self, rows: int) -> float:
        known, values = self._curve
        if not known:
            return 0.0
        at = bisect_left(known, rows)
        if at == 0:
            return values[0] * _shape(rows) / _shape(known[0])
        if at == len(known):
            # Further out the last two known sizes say how it goes on, or else the prior.
            slope = values[-1] * (_shape(rows) - _shape(known[-1])) / _shape(known[-1])
            if len(known) > 1 and known[-1] > 2 * known[0]:
                slope = (values[-1] - values[0]) / (known[-1] - known[0]) * (rows - known[-1])
            return values[-1] + slope
        share = (rows - known[at - 1]) / (known[at] - known[at - 1])
        return values[at - 1] + share * (values[at] - values[at - 1])

    @property
    def proposal(self) -> float:
        """Seconds of turning one canvas into drafts, and of what that does to the next pass."""
        return self._proposals.value + self._aftermath.value


@dataclass(frozen=True)
class Budget:
    """What one request may spend in a pass: at most `rows`, each at the price of the tokens that its time could bring.

    `others`: rows of the pass that are not this request's. Without `costs` rows are free.
    """

    rows: int
    others: int = 0
    costs: PassCosts | None = None

    def price(self, rows: int) -> float:
        """Tokens that `rows` rows must bring to be worth more than one row is."""
        if self.costs is None:
            return 0.0
        costs = self.costs
        return CAUTION * self._rate * (costs.seconds(self.others + rows) - costs.seconds(self.others + 1))

    @property
    def proposal(self) -> float:
        """Tokens that a canvas must bring to be worth being turned into drafts."""
        return 0.0 if self.costs is None else CAUTION * self._rate * self.costs.proposal

    @property
    def _rate(self) -> float:
        """Tokens a second; until any were seen, what one for each row of a plain pass would make."""
        assert self.costs is not None
        seconds = self.costs.seconds(self.others + 1)
        return self.costs.rate or ((self.others + 1) / seconds if seconds else 0.0)


def _rising(averages: Sequence[Average]) -> list[float]:
    """The values, pooled with neighbours where they fall, by how often each was measured (isotonic regression)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many averages
    for average in averages:
        mean, weight, size = average.value, min(average.count, 1 / MEMORY), 1
        while pools and pools[-1][0] > mean:
            other, more, others = pools.pop()
            mean, weight, size = (mean * weight + other * more) / (weight + more), weight + more, size + others
        pools.append((mean, weight, size))
    return [mean for mean, _, size in pools for _ in range(size)]


def _near(rows: int) -> int:
    """The grid's number nearest to `rows`, by ratio."""
    at = bisect_left(GRID, rows)
    if at == len(GRID):
        return GRID[-1]
    if at == 0 or GRID[at] == rows:
        return GRID[at]
    return GRID[at] if GRID[at] * GRID[at - 1] < rows * rows else GRID[at - 1]


def _shape(rows: int) -> float:
    return 1 + PRIOR * (rows - 1)
