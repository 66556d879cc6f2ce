"""The radix tree against a plain list of what was put in: lengths, contents, bytes, and who is evicted."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_engine import engine_config, hybrid_config
from trifolium.engine.prefixes import PrefixCache
from trifolium.model import RequestState
from trifolium.model.state import AttentionState, DeltaNetState, parts_nbytes

PLENTY = 2**40


def state_of(tokens, config=None) -> RequestState:
    """A state whose cell at each position, and whose snapshot, tell all tokens up to there apart."""
    state = RequestState(config or engine_config(num_kv_heads=1, num_heads=1, head_dim=2))
    state.reserve(len(tokens))
    for i in range(len(tokens)):
        mark = float(hash(tuple(tokens[: i + 1])) % 999_983)
        for layer in state.layers:
            if isinstance(layer, AttentionState):
                layer.keys[:, i], layer.values[:, i] = mark, -mark
            elif isinstance(layer, DeltaNetState):
                layer.state, layer.ring = torch.full_like(layer.state, mark), torch.full_like(layer.ring, -mark)
    state.length = len(tokens)
    return state


def insert(tree: PrefixCache, tokens, config=None, most: int = PLENTY, snapshot: bool = True) -> None:
    tree.insert(np.array(tokens, np.int32), state_of(tokens, config), most_bytes=most, snapshot=snapshot)


def check_bytes(tree: PrefixCache) -> None:
    """The count of bytes is that of the tensors, and the least recently used node has no children."""
    held = sum(n.tokens.nbytes + parts_nbytes(n.cells) + parts_nbytes(n.snapshot or ()) for n in tree)
    assert tree.nbytes == held
    for node in tree:
        assert node.parent is tree.root or node.parent in tree
        assert all(child.used <= node.used and child.parent is node for child in node.children.values())


def taken(tree: PrefixCache, tokens, config=None) -> int:
    """The length of a hit, after a check that its pieces make the state of exactly these tokens."""
    hit = tree.match(np.array(tokens, np.int32))
    if hit.length:
        truth = state_of(tokens[: hit.length], config)
        copy = RequestState(config or engine_config(num_kv_heads=1, num_heads=1, head_dim=2))
        copy.load(hit.length, hit.pieces, hit.snapshot)
        for ours, theirs in zip(copy.layers, truth.layers, strict=True):
            for a, b in zip(ours.cells(0, hit.length), theirs.cells(0, hit.length), strict=True):
                assert torch.equal(a, b)
            for a, b in zip(ours.snapshot(), theirs.snapshot(), strict=True):
                assert torch.equal(a, b)
    return hit.length


def common(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


few_tokens = st.lists(st.integers(0, 1), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(st.lists(few_tokens, min_size=1, max_size=8), st.lists(few_tokens, min_size=1, max_size=5))
def test_any_common_beginning_is_found(kept, asked):
    tree = PrefixCache(1, recurrent=False)
    for tokens in kept:
        insert(tree, tokens)
        check_bytes(tree)
    for tokens in asked:
        assert taken(tree, tokens) == max(common(tokens, other) for other in kept)


@settings(max_examples=60, deadline=None)
@given(st.lists(few_tokens, min_size=1, max_size=8), st.lists(few_tokens, min_size=1, max_size=5))
def test_on_a_grid_chunks_are_taken_whole_and_rests_only_by_their_equals(kept, asked):
    tree = PrefixCache(3, recurrent=False)
    for tokens in kept:
        insert(tree, tokens)
        check_bytes(tree)
    for tokens in asked:
        chunks = max(common(tokens, other) // 3 * 3 for other in kept)
        assert taken(tree, tokens) == (len(tokens) if tokens in kept else chunks)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(few_tokens, st.booleans()), min_size=1, max_size=8), st.lists(few_tokens, max_size=5))
def test_recurrent_state_is_taken_up_where_a_snapshot_stands(kept, asked):
    config = hybrid_config()
    tree = PrefixCache(1, recurrent=True)
    marks: list[list[int]] = []
    for tokens, snapshot in kept:
        insert(tree, tokens, config, snapshot=snapshot)
        marks += [tokens] if snapshot else []
        check_bytes(tree)
    for tokens in asked:
        reached = [len(mark) for mark in marks if tokens[: len(mark)] == mark]
        assert taken(tree, tokens, config) == max(reached, default=0)
        shared = tree.match(np.array(tokens, np.int32)).shared
        assert shared == max(common(tokens, other) for other, _ in kept)


@pytest.mark.parametrize("config", [engine_config(), hybrid_config()], ids=["dense", "hybrid"])
def test_bytes_are_bounded_and_everything_can_be_evicted(config):
    rng = random.Random(4)
    recurrent = config is not None and "delta_net" in config.mixers
    tree = PrefixCache(1, recurrent=recurrent)
    most = parts_nbytes(state_of([1] * 40, config).cells(0, 40)) + 3 * parts_nbytes(state_of([1], config).snapshot())
    for _ in range(60):
        tokens = [rng.randrange(2) for _ in range(rng.randint(1, 25))]
        insert(tree, tokens, config, most)
        assert tree.nbytes <= most
        check_bytes(tree)
        taken(tree, tokens, config)
    assert len(tree) > 1
    before = tree.nbytes
    assert tree.evict(PLENTY) == before
    assert tree.nbytes == len(tree) == 0
    assert not tree.root.children


def test_the_least_recently_used_goes_first():
    tree = PrefixCache(1, recurrent=False)
    for tokens in ([1, 1, 1], [2, 2, 2], [3, 3, 3]):
        insert(tree, tokens)
    assert taken(tree, [1, 1, 5]) == 2
    tree.evict(1)
    assert [taken(tree, [t] * 3) for t in (1, 2, 3)] == [3, 0, 3]
    insert(tree, [1, 1, 1, 4])
    tree.evict(1)
    assert [taken(tree, [t] * 3) for t in (1, 3)] == [3, 0]
    tree.evict(1)  # the end of a branch before its beginning
    assert taken(tree, [1, 1, 1, 4]) == 3


def test_old_snapshots_inside_a_branch_go_before_newer_leaves():
    config = hybrid_config()
    tree = PrefixCache(1, recurrent=True)
    insert(tree, [1, 1], config)
    insert(tree, [1, 1, 1, 1], config)
    assert taken(tree, [1, 1, 1, 1], config) == 4
    assert tree.evict(1) == parts_nbytes(state_of([1], config).snapshot())
    assert taken(tree, [1, 1, 2], config) == 0
    assert taken(tree, [1, 1, 1, 1], config) == 4


def test_what_cannot_fit_is_not_kept():
    tree = PrefixCache(1, recurrent=False)
    insert(tree, [1] * 4)
    before = tree.nbytes
    insert(tree, [1] * 40, most=before + 1)
    assert taken(tree, [1] * 40) == 4
    assert tree.nbytes == before
