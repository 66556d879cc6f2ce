"""The rows of one pass: which request, position, kind, block and branch each row belongs to.

A pass puts all commit rows first (padded to whole tiles), then all preview rows:

    | commit rows of request 1 | of request 2 | ... | padding | preview rows of request 1, branch 0 | branch 1 | ...

A request's commit rows stand at positions length, length + 1, ... of its state. Branch n's context ends with one of
those rows: it reads the state as it would be if exactly the rows up to there were accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .state import RequestState

MASK = -1
"""Input id of a masked canvas position. Not a vocabulary id: the adapter's mask embedding stands in for it."""

ROW_TILE = 16
"""Float products of commit rows always run on this many rows, so that rounding can't depend on the pass's width."""


@dataclass(frozen=True)
class Branch:
    """One block of preview rows. `context`: how many positions of the request it reads; its rows follow those."""

    start: int
    count: int
    context: int


@dataclass(frozen=True)
class Segment:
    """One request's part of a pass. `start` indexes commit rows, `Branch.start` indexes preview rows."""

    state: RequestState
    start: int
    count: int
    branches: tuple[Branch, ...]

    @property
    def end(self) -> int:
        """Positions written once all commit rows are: the state's length plus the commit rows."""
        return self.state.length + self.count


@dataclass(frozen=True)
class RequestRows:
    """What a request wants from the next pass: known or drafted `commit` tokens, and canvases that branch off them.

    A block is (n, canvas): `canvas` holds tokens or MASK, and its context ends after the n-th commit row (1-based).
    """

    state: RequestState
    commit: Sequence[int]
    blocks: Sequence[tuple[int, Sequence[int]]] = ()


@dataclass(frozen=True)
class Rows:
    """A pass. `tokens`, `positions` [N]; `block_index` [N - num_commit] is each preview row's place in its block."""

    tokens: Tensor
    positions: Tensor
    block_index: Tensor
    num_commit: int
    segments: tuple[Segment, ...]
    prefill: bool

    @property
    def limit(self) -> int:
        """One more than the largest position of the pass."""
        ends = [s.end for s in self.segments] + [b.context + b.count for s in self.segments for b in s.branches]
        return max(ends, default=1)

    @staticmethod
    def build(requests: Sequence[RequestRows], *, tile: bool = True, prefill: bool = False) -> Rows:
        """Lay out a pass; reserves room in every state for its commit rows. `tile`: pad commit rows to whole tiles.

        `prefill` passes hold one chunk of one prompt and no previews; their products run on the whole chunk, which is
        exact in every mode since prompts are always cut on the same grid.
        """
        tokens: list[int] = []
        positions: list[int] = []
        starts = []
        for request in requests:
            starts.append(len(tokens))
            tokens += request.commit
            positions += range(request.state.length, request.state.length + len(request.commit))
            request.state.reserve(request.state.length + len(request.commit))
        if tile and not prefill:
            padding = -len(tokens) % ROW_TILE
            tokens += [0] * padding
            positions += [0] * padding
        num_commit = len(tokens)
        block_index: list[int] = []
        segments = []
        for request, start in zip(requests, starts, strict=True):
            branches = []
            for n, canvas in request.blocks:
                context = request.state.length + n
                branches.append(Branch(len(block_index), len(canvas), context))
                tokens += canvas
                positions += range(context, context + len(canvas))
                block_index += range(len(canvas))
            segments.append(Segment(request.state, start, len(request.commit), tuple(branches)))
        return Rows(
            torch.tensor(tokens, dtype=torch.long),
            torch.tensor(positions, dtype=torch.long),
            torch.tensor(block_index, dtype=torch.long),
            num_commit,
            tuple(segments),
            prefill,
        )
