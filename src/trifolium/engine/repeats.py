"""Answers that go round in circles: their end is one unit, a line or a call, again and again."""

from __future__ import annotations

import numpy as np

LONGEST = 256
"""Tokens of a unit, at most."""

LEAST = 64
"""Tokens that all repetitions have together, at least: a short word may well be said ten times."""


class Repeats:
    """Watches the tokens of one answer. `times`: how often a unit stands at its end before that is a circle."""

    def __init__(self, times: int) -> None:
        periods = np.arange(1, LONGEST + 1)
        # A unit of p tokens stands there n times where the last (n - 1) p tokens equal those p before them.
        self._needed = np.maximum(periods * (times - 1), LEAST - periods)
        self._same = np.zeros(LONGEST, np.int64)
        self._recent = np.full(LONGEST, -1, np.int64)  # the latest token first

    def push(self, token: int) -> bool:
        """Whether the answer with this token goes in circles."""
        self._same = np.where(self._recent == token, self._same + 1, 0)
        self._recent[1:] = self._recent[:-1]
        self._recent[0] = token
        return bool((self._same >= self._needed).any())
