"""The rows of one pass: which request, position, kind, block and branch each row belongs to.

A pass puts all commit rows first (padded to whole tiles), then all preview rows:

    | commit rows of request 1 | of request 2 | ... | padding | preview rows of request 1, branch 0 | branch 1 | ...

A request's commit rows form a tree: each one follows another (its parent) or the state. Without branching they are a
chain at positions length, length + 1, ... A block's context ends with one of those rows: it reads the state as it would
be if exactly the rows up to there were accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..ops.conv import path_index
from .state import RequestState

MASK = -1
"""Input id of a masked canvas position. Not a vocabulary id: the adapter's mask embedding stands in for it."""

ROW_TILE = 16
"""Float products of commit rows always run on this many rows, so that rounding can't depend on the pass's width."""


@dataclass(frozen=True)
class Branch:
    """One block of preview rows. `path`: the commit rows that its context adds to the state, oldest first."""

    start: int
    count: int
    path: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """Commit rows `start` .. `start + count - 1` of a segment, each following the one before; `path` leads to them."""

    start: int
    count: int
    path: tuple[int, ...]


@dataclass(frozen=True)
class Segment:
    """One request's part of a pass. `start` indexes commit rows, `Branch.start` indexes preview rows.

    `paths`: for each commit row, the rows from the state to it, itself included. `chains` cover the segment's commit
    rows; the first one follows the state.
    """

    state: RequestState
    start: int
    count: int
    paths: tuple[tuple[int, ...], ...]
    chains: tuple[Chain, ...]
    branches: tuple[Branch, ...]
    _taps: dict[int, Tensor] = field(default_factory=dict, repr=False)

    def taps(self, width: int) -> Tensor:
        """For each commit row, the inputs of a causal convolution of `width` taps [count, width] (ops.conv.rows)."""
        if width not in self._taps:
            self._taps[width] = path_index(self.paths, width)
        return self._taps[width]

    @property
    def previews(self) -> slice:
        """Its preview rows, counted as `Branch.start` is."""
        if not self.branches:
            return slice(0, 0)
        return slice(self.branches[0].start, self.branches[-1].start + self.branches[-1].count)


@dataclass(frozen=True)
class RequestRows:
    """What a request wants from the next pass: known or drafted `commit` tokens, and canvases that branch off them.

    `parents`: for each commit token, the index of the one that it follows, -1 for the state; None for a chain. Parents
    come before children, and a token follows the one right before it wherever it can. A block is (n, canvas): `canvas`
    holds tokens or MASK, and its context ends with the n-th commit token (1-based; 0: with the state).
    """

    state: RequestState
    commit: Sequence[int]
    blocks: Sequence[tuple[int, Sequence[int]]] = ()
    parents: Sequence[int] | None = None

    def paths(self) -> list[tuple[int, ...]]:
        """For each commit token, the indices from the state to it, itself included."""
        paths: list[tuple[int, ...]] = []
        for i in range(len(self.commit)):
            parent = i - 1 if self.parents is None else self.parents[i]
            paths.append((*(paths[parent] if parent >= 0 else ()), i))
        return paths


def chains_of(paths: Sequence[tuple[int, ...]]) -> tuple[Chain, ...]:
    """Cut a tree of rows into runs of consecutive rows, each following the one before."""
    chains: list[Chain] = []
    for i, path in enumerate(paths):
        if chains and path[-2:-1] == (i - 1,):
            last = chains[-1]
            chains[-1] = Chain(last.start, last.count + 1, last.path)
        else:
            chains.append(Chain(i, 1, path[:-1]))
    return tuple(chains)


@dataclass(frozen=True)
class Rows:
    """A pass. `tokens`, `positions` [N]; `block_index` [N - num_commit] is each preview row's place in its block.

    `experts_read`: filled during the pass, for each mixture of experts how many distinct experts it read.
    """

    tokens: Tensor
    positions: Tensor
    block_index: Tensor
    num_commit: int
    segments: tuple[Segment, ...]
    prefill: bool
    limit: int
    """One more than the largest position of the pass."""
    experts_read: list[int] = field(default_factory=list)

    @property
    def real_commit(self) -> int:
        """Commit rows without padding."""
        return sum(segment.count for segment in self.segments)

    @property
    def tile(self) -> int | None:
        """Rows of an exact float product; None in prefill passes, which are exact as they are."""
        return None if self.prefill else ROW_TILE

    @staticmethod
    def build(requests: Sequence[RequestRows], *, tile: bool = True, prefill: bool = False) -> Rows:
        """Lay out a pass; reserves room in every state for its commit rows. `tile`: pad commit rows to whole tiles.

        `prefill` passes hold one chunk of one prompt and no previews; their products run on the whole chunk, which is
        exact in every mode since prompts are always cut on the same grid.
        """
        tokens: list[int] = []
        positions: list[int] = []
        starts, trees = [], []
        for request in requests:
            paths = request.paths()
            length = request.state.length
            starts.append(len(tokens))
            trees.append(paths)
            tokens += request.commit
            positions += (length + len(path) - 1 for path in paths)
            request.state.reserve(length + max(map(len, paths), default=0))
        if tile and not prefill:
            padding = -len(tokens) % ROW_TILE
            tokens += [0] * padding
            positions += [0] * padding
        num_commit = len(tokens)
        block_index: list[int] = []
        segments = []
        for request, start, paths in zip(requests, starts, trees, strict=True):
            branches = []
            for n, canvas in request.blocks:
                path = paths[n - 1] if n else ()
                first = request.state.length + len(path)
                branches.append(Branch(len(block_index), len(canvas), path))
                tokens += canvas
                positions += range(first, first + len(canvas))
                block_index += range(len(canvas))
            segments.append(
                Segment(request.state, start, len(request.commit), tuple(paths), chains_of(paths), tuple(branches))
            )
        return Rows(
            torch.tensor(tokens, dtype=torch.long),
            torch.tensor(positions, dtype=torch.long),
            torch.tensor(block_index, dtype=torch.long),
            num_commit,
            tuple(segments),
            prefill,
            max(positions, default=0) + 1,
        )
