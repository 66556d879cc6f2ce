"""Noisy blocks have the form that decoding uses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trifolium.model.rows import MASK
from trifolium.train.data import Conversation, collate
from trifolium.train.noise import NoiseConfig, draw_blocks


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(4, 150), st.integers(1, 3)), min_size=1, max_size=5),
    st.integers(1, 9),
    st.integers(0, 1000),
)
def test_rows_read_and_predict_the_right_places(lengths: list[tuple[int, int]], size: int, seed: int) -> None:
    conversations = [Conversation(np.arange(100, 100 + n), a) for n, a in lengths]
    batch = collate(conversations)
    noise = NoiseConfig(block_sizes={size: 1.0}, full=0.4, prefix=0.3)
    blocks = draw_blocks(batch, 40, noise, np.random.default_rng(seed))
    count = blocks.starts.shape[1]
    for b, (n, answer) in enumerate(lengths):
        for k in range(count):
            start = int(blocks.starts[b, k])
            assert answer - 1 <= start <= max(answer - 1, n - 3)
            for j in range(size):
                row = k * size + j
                position = start + 1 + j
                assert int(blocks.positions[b, row]) == position
                assert int(blocks.block_index[b, row]) == j
                if position + 1 < n:
                    assert int(blocks.targets[b, row]) == 100 + position + 1
                    assert int(blocks.previous[b, row]) == 100 + position
                else:
                    assert not blocks.loss[b, row]
                if int(blocks.tokens[b, row]) != MASK and position < n:
                    assert int(blocks.tokens[b, row]) == 100 + position
                next_known = j + 1 < size and int(blocks.tokens[b, row + 1]) != MASK
                assert bool(blocks.loss[b, row]) == (position + 1 < n and not next_known)
                visible = blocks.visible[b, 0, row]
                cells = batch.tokens.shape[1]
                assert [int(i) for i in visible[:cells].nonzero()[:, 0]] == list(range(min(start + 1, cells)))
                own = [int(i) for i in visible[cells:].nonzero()[:, 0]]
                assert own == list(range(k * size, (k + 1) * size))


def test_full_blocks_hold_no_token() -> None:
    batch = collate([Conversation(np.arange(60), 2)])
    noise = NoiseConfig(block_sizes={4: 1.0, 8: 1.0}, full=1.0, prefix=0.0)
    for seed in range(8):
        blocks = draw_blocks(batch, 32, noise, np.random.default_rng(seed))
        assert blocks.block_size in (4, 8)
        assert bool((blocks.tokens == MASK).all())


def test_prefix_blocks_know_a_prefix() -> None:
    batch = collate([Conversation(np.arange(200), 2)])
    noise = NoiseConfig(block_sizes={6: 1.0}, full=0.0, prefix=1.0)
    known = draw_blocks(batch, 60, noise, np.random.default_rng(0)).tokens.view(-1, 6) != MASK
    assert bool((known.long().diff(dim=1) <= 0).all())
    assert bool(known[:, 0].all())


def test_unknown_key_is_refused() -> None:
    from trifolium.errors import ConfigError

    with pytest.raises(ConfigError, match="fulll"):
        NoiseConfig.parse({"fulll": 1}, "noise")
