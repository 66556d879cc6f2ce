"""What passes between the scheduler's decoders and the runner: a request's part of a pass, and what came out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .costs import Budget
from .drafts import Draft
from .proposals import Ask


@dataclass(frozen=True)
class Plan:
    """One request's rows for the next pass.

    `commit`: known or drafted tokens after the state. `heads`: how many of the last commit rows need logits; or else
    `picked` names those that do. `blocks`: (n, canvas), and `parents`, as in `RequestRows`. `decodes`: whether the rows
    may bring tokens, from which the engine learns what rows are worth.
    """

    commit: tuple[int, ...]
    heads: int
    blocks: tuple[tuple[int, tuple[int, ...]], ...] = ()
    parents: tuple[int, ...] | None = None
    picked: tuple[int, ...] | None = None
    decodes: bool = True

    @property
    def read(self) -> Sequence[int]:
        """The commit rows that need logits."""
        return range(len(self.commit) - self.heads, len(self.commit)) if self.picked is None else self.picked

    @property
    def rows(self) -> int:
        """Rows that it adds to the pass."""
        return len(self.commit) + sum(len(canvas) for _, canvas in self.blocks)


@dataclass(frozen=True)
class Outcome:
    """What a pass computed for a plan.

    Hidden vectors [heads, D] and logits [heads, V] of the commit rows that are read, the logits' argmax, and each
    block's hidden vectors [m, D]. `experts_read`: distinct experts that the pass read in a mixture layer, on average.
    """

    hidden: Tensor
    logits: Tensor
    largest: Sequence[int]
    blocks: Sequence[Tensor]
    experts_read: float = 0.0


class Decoder(Protocol):
    """How one request decodes, pass by pass, after its prompt."""

    def plan(self, budget: Budget) -> Plan:
        """What to run next, in about `budget.rows` rows; at least what progress needs."""
        ...

    def apply(self, outcome: Outcome) -> Ask | None:
        """Accept, emit and commit what the pass brought; ask for proposals of preview rows, if they will be drafts."""
        ...

    def receive(self, draft: Draft) -> None:
        """The proposals that `apply` asked for."""
        ...
