"""What rows cost, learned from the passes themselves, and what they must bring to be worth it.

Rows decide how fast an answer comes, never what it says: timings may steer them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

GRID = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of rows that costs are kept for; between them they are interpolated."""

PRIOR = 0.12
"""What each further row adds to the cost of a pass of one, until passes say otherwise."""

MEMORY = 0.1
"""Weight of the latest pass in an average, once there are many."""


@dataclass
class Average:
    """A running mean that forgets; one outlier (another program took the processor) moves it little."""

    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Take one more measurement."""
        self.count += 1
        if self.count > 2:
            value = min(value, 2 * self.value)
        self.value += (value - self.value) * max(MEMORY, 1 / self.count)


@dataclass
class PassCosts:
    """Seconds of a pass by its number of rows, and how many tokens a second of passes brings just now."""

    _seconds: dict[int, Average] = field(default_factory=dict)
    _curve: tuple[list[int], list[float]] = field(default_factory=lambda: ([], []))
    _tokens: Average = field(default_factory=Average)
    _spent: Average = field(default_factory=Average)

    def observe(self, rows: int, seconds: float, tokens: int) -> None:
        """A decoding pass of `rows` rows is over, proposals included, and brought `tokens`."""
        self._seconds.setdefault(_near(rows), Average()).add(seconds)
        self._tokens.add(tokens)
        self._spent.add(seconds)
        known = sorted(self._seconds)
        self._curve = known, list(accumulate((self._seconds[size].value for size in known), max))

    def seconds(self, rows: int) -> float:
        """What a pass of so many rows is expected to take; 0 before anything was observed. Never falls with rows."""
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
    def rate(self) -> float:
        """Tokens per second of passes, lately."""
        return self._tokens.value / self._spent.value if self._spent.value else 0.0


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
        return costs.rate * (costs.seconds(self.others + rows) - costs.seconds(self.others + 1))


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
