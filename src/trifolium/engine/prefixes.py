"""The prefix cache: what other requests have computed for the same first tokens, in a radix tree over token ids.

A node stands for a stretch of tokens after its parent's. It holds the cells of those positions, and in some places a
snapshot of the recurrent state after them. Only what commit rows computed goes in, and only what a request that starts
from nothing would compute to the same bits:

- `unit` 1, for models whose commit rows have the same bits in any pass: any stretch of prompt or answer.
- `unit` n, for models whose prompts are computed in chunks on a grid of n positions: whole chunks. What is left of a
  prompt after its last whole chunk is a node by itself, which fits only prompts that end with the same tokens.

A hit is copied into the request's own state; nothing in the tree is ever written to. The tree belongs to one engine,
whose model, dtype and adapter never change, so that tokens alone are a sufficient key (an adapter acts on preview rows
only, which are not kept).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from ..model import RequestState
from ..model.state import Parts, cut_cells, parts_nbytes

Tokens = npt.NDArray[np.int32]


class Node:
    """Tokens [n] after the parent's, their cells, and maybe the recurrent state after the last one."""

    def __init__(self, tokens: Tokens, cells: Parts, parent: Node | None) -> None:
        self.tokens = tokens
        self.cells = cells
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.snapshot: Parts | None = None
        self.nbytes = tokens.nbytes + parts_nbytes(cells)
        """Bytes of tokens and cells."""
        self.used = self.resumed = 0
        """When the node, and its snapshot, were last of use."""


@dataclass(frozen=True)
class Hit:
    """The first `length` positions, as (start, cells) pieces and the snapshot after them, if the model needs one.

    `shared`: how many tokens the tree knows, even where no snapshot stands to start from.
    """

    length: int = 0
    shared: int = 0
    pieces: tuple[tuple[int, Parts], ...] = ()
    snapshot: Parts | None = None


class PrefixCache:
    """A tree of prefixes, of bounded size; what was of no use for longest goes first.

    `recurrent`: the model has layers whose state can only be taken up where a snapshot stands.
    """

    def __init__(self, unit: int, recurrent: bool) -> None:
        self._unit = unit
        self._recurrent = recurrent
        self._clock = count(1)
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._root = Node(np.empty(0, np.int32), (), None)
        # Least recently used first. A node is never older than its children, so the first one is always a leaf.
        self._nodes: OrderedDict[Node, None] = OrderedDict()
        self._snapshots: OrderedDict[Node, None] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    @property
    def root(self) -> Node:
        """Where all prefixes start; holds nothing itself."""
        return self._root

    def match(self, tokens: Tokens, beyond: int = 0) -> Hit:
        """The longest stretch at the start of `tokens` [n] that can be taken over, if it is longer than `beyond`.

        Pieces that end at or before `beyond` are left out. They may be views of what the tree holds: copy them.
        """
        path = self._walk(tokens)
        shared = sum(common for _, common in path)
        usable, length = len(path), shared
        if self._recurrent:
            while usable and (
                path[usable - 1][0].snapshot is None or path[usable - 1][1] < len(path[usable - 1][0].tokens)
            ):
                usable -= 1
            length = sum(common for _, common in path[:usable])
        if length <= beyond:
            return Hit(shared=shared)
        pieces, at = [], 0
        for node, common in path[:usable]:
            if at + common > beyond:
                pieces.append((at, tuple(tuple(t[:, :common] for t in layer) for layer in node.cells)))
            at += common
        last = path[usable - 1][0]
        self._touch(last)
        if self._recurrent:
            last.resumed = last.used
            self._snapshots.move_to_end(last)
        return Hit(length, shared, tuple(pieces), last.snapshot)

    def insert(self, tokens: Tokens, state: RequestState, *, most_bytes: int, snapshot: bool = True) -> None:
        """Keep what a state of exactly these tokens [n] holds, as far as the tree doesn't have it.

        `snapshot`: with the recurrent state after them. Older prefixes are evicted so that all fit into `most_bytes`;
        what can't fit is not kept.
        """
        snapshot = snapshot and self._recurrent
        path = self._walk(tokens)
        node, at = self._root, sum(common for _, common in path)
        if path:
            node, common = path[-1]
            self._touch(node)
            if common < len(node.tokens) and (at < len(tokens) or snapshot):
                node = self._split(node, common)
        whole = at + (len(tokens) - at) // self._unit * self._unit
        for start, end in ((at, whole), (whole, len(tokens))):
            if start < end:
                own = tokens[start:end].copy()
                if not self._room(own.nbytes + state.size.cell * len(own), most_bytes, node):
                    return
                node = self._grow(node, own, state.cells(start, end))
        if snapshot and node.snapshot is None and node is not self._root:
            taken = state.snapshot()
            if self._room(parts_nbytes(taken), most_bytes, node):
                node.snapshot = taken
                node.resumed = node.used
                self._snapshots[node] = None
                self.nbytes += parts_nbytes(taken)

    def evict(self, wanted: int, keep: Node | None = None) -> int:
        """Free at least `wanted` bytes if that much can be; what was freed. `keep` was used last and stays."""
        before = self.nbytes
        while self._nodes and before - self.nbytes < wanted:
            oldest = next(iter(self._nodes))
            resumable = next(iter(self._snapshots), None)
            if resumable is not None and resumable.children and resumable.resumed <= oldest.used:
                self._forget_snapshot(resumable)
            elif oldest is keep:
                break
            else:
                self._remove(oldest)
        return before - self.nbytes

    def _walk(self, tokens: Tokens) -> list[tuple[Node, int]]:
        """The nodes that agree with the start of `tokens`, and with how many tokens each; all but the last with all."""
        path: list[tuple[Node, int]] = []
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(self._key(tokens[at:]))
            if child is None:
                break
            common = self._common(child.tokens, tokens[at:])
            path.append((child, common))
            at += common
            if common < len(child.tokens):
                break
            node = child
        return path

    def _key(self, tokens: Tokens) -> bytes:
        """What siblings differ in: their first unit. A shorter one is what is left of a prompt, and equals no other."""
        return tokens[: self._unit].tobytes()

    def _common(self, ours: Tokens, theirs: Tokens) -> int:
        """How many tokens agree, in whole units; the first unit does."""
        n = min(len(ours), len(theirs))
        differing = np.flatnonzero(ours[:n] != theirs[:n])
        agreed = int(differing[0]) if len(differing) else n
        return agreed if agreed == len(ours) else agreed // self._unit * self._unit

    def _touch(self, node: Node) -> None:
        """The node, and so all that it follows, was of use just now."""
        now = next(self._clock)
        at: Node | None = node
        while at is not None and at is not self._root:
            at.used = now
            self._nodes.move_to_end(at)
            at = at.parent

    def _grow(self, parent: Node, tokens: Tokens, cells: Parts) -> Node:
        node = Node(tokens, cells, parent)
        parent.children[self._key(tokens)] = node
        self._nodes[node] = None
        self.nbytes += node.nbytes
        self._touch(node)
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two; the first half, which takes its place."""
        assert node.parent is not None
        first = Node(node.tokens[:at].copy(), cut_cells(node.cells, 0, at), node.parent)
        node.parent.children[self._key(node.tokens)] = first
        self.nbytes -= node.nbytes
        rest = Node(node.tokens[at:].copy(), cut_cells(node.cells, at, len(node.tokens)), first)
        node.tokens, node.cells, node.parent, node.nbytes = rest.tokens, rest.cells, first, rest.nbytes
        first.children[self._key(node.tokens)] = node
        first.used = node.used
        self._nodes[first] = None
        self.nbytes += first.nbytes + node.nbytes
        self._touch(first)
        return first

    def _room(self, needed: int, most_bytes: int, keep: Node) -> bool:
        """Make room for `needed` bytes more."""
        over = self.nbytes + needed - most_bytes
        return needed <= most_bytes and (over <= 0 or self.evict(over, keep) >= over)

    def _remove(self, leaf: Node) -> None:
        assert leaf.parent is not None
        assert not leaf.children
        if leaf.snapshot is not None:
            self._forget_snapshot(leaf)
        del leaf.parent.children[self._key(leaf.tokens)]
        del self._nodes[leaf]
        self.nbytes -= leaf.nbytes

    def _forget_snapshot(self, node: Node) -> None:
        assert node.snapshot is not None
        self.nbytes -= parts_nbytes(node.snapshot)
        node.snapshot = None
        del self._snapshots[node]
