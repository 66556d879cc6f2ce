"""Preview rows: branches of a fused pass are preview_stream's blocks, and both are the plain model's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from plain import Plain
from torch import Tensor

from random_models import random_model, random_tokens, tiny_config, tiny_hybrid
from trifolium.config import ModelConfig
from trifolium.model import MASK, Blocks, RequestRows, Rows, Transformer
from trifolium.model.state import AttentionState

Canvases = list[tuple[int, list[int]]]

CONFIGS = {
    "llama": tiny_config("llama", qkv_bias=True, out_bias=True, mlp_bias=True),
    "qwen2": tiny_config("qwen2", tie_embeddings=True, num_heads=4, num_kv_heads=1, head_dim=10),
    "qwen3": tiny_config("qwen3"),
    "hybrid": tiny_hybrid(),
    "next": tiny_hybrid("qwen3_next"),
}
BLOCKS: Canvases = [
    (1, [MASK, MASK, 5, MASK]),
    (3, [MASK]),
    (4, [8, MASK, MASK, MASK, MASK, MASK, MASK, MASK, MASK, 2]),  # longer than the adapter's max_block
    (4, [MASK, MASK]),
]
COMMIT = 4
ATOL = 5e-4


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return random_model(CONFIGS[request.param])


def fused(model: Transformer, length: int, commit: Sequence[int], blocks: Canvases, others: int = 0) -> list[Tensor]:
    """Hidden vectors of each block, previewed in one pass with commit rows over `length` committed tokens."""
    requests = [request(model, length, commit, blocks)]
    requests += [request(model, 11 + i, [1, 2], [(2, [MASK] * 3), (1, [MASK])]) for i in range(others)]
    rows = Rows.build(requests, tile=model.tiled)
    hidden = model.rows(rows)[rows.num_commit :]
    return [hidden[b.start : b.start + b.count] for b in rows.segments[0].branches]


def request(model: Transformer, length: int, commit: Sequence[int], blocks: Canvases) -> RequestRows:
    state = model.new_state()
    if length:
        model.rows(Rows.build([RequestRows(state, random_tokens(model.config, length))], prefill=True))
        state.accept(length)
    return RequestRows(state, commit, blocks)


def drafts(config: ModelConfig) -> list[int]:
    return random_tokens(config, COMMIT, seed=9)


def streamed(model: Transformer, length: int, commit: Sequence[int], block: tuple[int, list[int]]) -> Tensor:
    """The same block as training sees it: over the clean stream's context, cut where the block starts."""
    n, canvas = block
    context = length + n
    tokens = torch.tensor([(random_tokens(model.config, length) if length else []) + list(commit)])
    _, contexts = model.commit_stream(tokens)
    cells, m = tokens.shape[1], len(canvas)
    visible = torch.cat((torch.arange(cells) < context, torch.ones(m, dtype=torch.bool))).expand(1, 1, m, -1)
    positions, index = context + torch.arange(m)[None], torch.arange(m)[None]
    blocks = Blocks(torch.tensor([[context - 1]]), torch.tensor([canvas]), positions, index, visible, m)
    return model.preview_stream(blocks, contexts)[0]


@pytest.mark.parametrize("length", [0, 3, 61, 64, 130])
def test_branches_of_a_fused_pass_are_streamed_blocks(model: Transformer, length: int) -> None:
    commit = drafts(model.config)
    for others in (0, 2):
        for got, block in zip(fused(model, length, commit, BLOCKS, others), BLOCKS, strict=True):
            assert torch.allclose(got, streamed(model, length, commit, block), rtol=1e-4, atol=ATOL), block


def test_all_blocks_of_a_stream_at_once(model: Transformer) -> None:
    """One preview_stream call over every block, with training's mask in both its forms."""
    if "delta_net" in model.config.mixers:
        pytest.skip("a stream's blocks have one size where a layer reads them as blocks")
    commit = drafts(model.config)
    tokens = torch.tensor([random_tokens(model.config, 20) + commit])
    _, contexts = model.commit_stream(tokens)
    canvas = torch.tensor([list(itertools.chain.from_iterable(c for _, c in BLOCKS))])
    starts = torch.tensor([20 + n for n, c in BLOCKS for _ in c])
    owner = torch.tensor([i for i, (_, c) in enumerate(BLOCKS) for _ in c])
    index = torch.tensor([[j for _, c in BLOCKS for j in range(len(c))]])
    visible = torch.cat((torch.arange(24) < starts[:, None], owner[:, None] == owner), 1)[None, None]
    additive = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    expected = torch.cat(fused(model, 20, commit, BLOCKS))
    for mask in (visible, additive):
        blocks = Blocks(starts[None] - 1, canvas, starts + index, index, mask, 1)
        got = model.preview_stream(blocks, contexts)[0]
        assert torch.allclose(got, expected, rtol=1e-4, atol=ATOL)


def test_a_block_is_the_plain_models_block(model: Transformer) -> None:
    """Context and own block, one row, head and cell at a time in float64."""
    length, commit = 9, drafts(model.config)
    plain = Plain(model)
    for token in random_tokens(model.config, length):
        plain.commit(token)
    got = fused(model, length, commit, BLOCKS)
    for accepted, token in enumerate(commit, 1):
        plain.commit(token)
        for block, (n, canvas) in zip(got, BLOCKS, strict=True):
            if n == accepted:
                assert torch.allclose(block, plain.preview(canvas).float(), rtol=1e-4, atol=ATOL)


def test_a_branch_sees_nothing_but_its_context_and_itself(model: Transformer) -> None:
    """Not a bit changes with other branches' tokens or later commit rows, and each thing that it reads changes it."""
    if "delta_net" in model.config.mixers:
        pytest.skip("all branches share one batched product, whose rounding depends on their number")
    commit = drafts(model.config)
    before = fused(model, 30, commit, BLOCKS)
    for at, (n, canvas) in enumerate(BLOCKS):
        other_tokens = [(m, c if i == at else [3] * len(c)) for i, (m, c) in enumerate(BLOCKS)]
        other_drafts = commit[:n] + [(t + 1) % model.config.vocab_size for t in commit[n:]]
        assert torch.equal(fused(model, 30, other_drafts, other_tokens)[at], before[at])
        last_draft = [*commit[: n - 1], (commit[n - 1] + 1) % model.config.vocab_size, *commit[n:]]
        assert row_changes(fused(model, 30, last_draft, BLOCKS)[at], before[at])
        for j in range(len(canvas)):
            changed = [*canvas[:j], 4 if canvas[j] == MASK else MASK, *canvas[j + 1 :]]
            blocks = [*BLOCKS[:at], (n, changed), *BLOCKS[at + 1 :]]
            assert row_changes(fused(model, 30, commit, blocks)[at], before[at])


def row_changes(a: Tensor, b: Tensor) -> bool:
    """Whether every row differs, by more than rounding."""
    return bool(((a - b).abs().amax(-1) > 1e-4).all())


def test_alone_or_among_other_branches(model: Transformer) -> None:
    commit = drafts(model.config)
    together = fused(model, 70, commit, BLOCKS)
    for block, expected in zip(BLOCKS, together, strict=True):
        assert torch.allclose(fused(model, 70, commit, [block])[0], expected, rtol=1e-4, atol=ATOL)


def test_previews_without_commit_rows(model: Transformer) -> None:
    """A canvas can be refined over what is committed already: n = 0."""
    blocks: Canvases = [(0, [MASK, 6, MASK])]
    expected = fused(model, 12, random_tokens(model.config, 12)[:1], [(0, [MASK, 6, MASK])])[0]
    assert torch.allclose(fused(model, 12, [], blocks)[0], expected, rtol=1e-4, atol=ATOL)
    assert torch.allclose(fused(model, 12, [], blocks, others=1)[0], expected, rtol=1e-4, atol=ATOL)


def test_previews_write_nothing(model: Transformer) -> None:
    r = request(model, 40, drafts(model.config), BLOCKS)
    model.rows(Rows.build([r], tile=True))
    without = request(model, 40, r.commit, [])
    model.rows(Rows.build([without], tile=True))
    assert r.state.length == 40
    for got, expected in zip(r.state.layers, without.state.layers, strict=True):
        names = ("keys", "values") if isinstance(got, AttentionState) else ("state", "ring")
        for name in names:
            assert torch.equal(getattr(got, name), getattr(expected, name)), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_a_fresh_adapter_changes_nothing(dtype: torch.dtype) -> None:
    """With a known token instead of a mask, a block of one row is a commit row."""
    model = random_model(CONFIGS["llama"], dtype)
    assert model.adapter is not None
    model.adapter.reset(model.embed.weight, seed=0)
    commit = drafts(model.config)
    r = request(model, 33, commit, [(n, [commit[n]]) for n in range(1, COMMIT)])
    rows = Rows.build([r], tile=model.tiled)
    logits = model.logits(model.rows(rows))
    assert torch.allclose(logits[rows.num_commit :], logits[1:COMMIT], rtol=1e-4, atol=ATOL)
    # And the chain hands the vectors on as they are.
    assert model.adapter.chain is not None
    hidden = torch.randn(2, 5, model.config.hidden_size)
    assert torch.equal(model.adapter.chain(hidden, torch.randn_like(hidden), hidden[:, 0]), hidden)


def test_a_fresh_adapters_mask_is_the_mean_token() -> None:
    model = random_model(CONFIGS["llama"])
    assert model.adapter is not None
    model.adapter.reset(model.embed.weight, seed=0)
    assert torch.equal(model.adapter.mask_embedding, model.embed.weight.mean(0))
    assert not model.adapter.block_position.any()
