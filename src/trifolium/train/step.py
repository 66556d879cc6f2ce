"""One optimiser step: the clean stream once, then every noisy view's loss and gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..model.adapter import Adapter
from ..model.transformer import Transformer
from .data import Batch
from .loss import Shortlist, frozen_head_cross_entropy
from .noise import NoisyBlocks, draw_blocks
from .recipe import Recipe


@dataclass
class StepStats:
    """Sums over a step; losses are means per weighted row, `rows` are those scored."""

    plain_loss: float
    chain_loss: float
    rows: int
    answer_tokens: int
    flops: float


def block_contexts(clean_BTD: Tensor, blocks: NoisyBlocks) -> Tensor:
    """The clean stream's final hidden vector at every block's last known position [B, R / m, D]."""
    return clean_BTD.gather(1, blocks.starts[..., None].expand(-1, -1, clean_BTD.shape[-1]))


def chain_hidden(model: Transformer, adapter: Adapter, hidden: Tensor, clean: Tensor, blocks: NoisyBlocks) -> Tensor:
    """The chain's refined vectors [B, R, D] of all blocks, given the true previous tokens."""
    assert adapter.chain is not None
    shape = (len(hidden), -1, blocks.block_size, hidden.shape[-1])
    previous = model.embed(blocks.previous).view(shape)
    refined: Tensor = adapter.chain(hidden.view(shape), previous, block_contexts(clean, blocks))
    return refined.view_as(hidden)


def accumulate_gradients(
    model: Transformer, batch: Batch, recipe: Recipe, shortlist: Shortlist, step: int
) -> StepStats:
    """Add the gradients of one step's batch to the adapter's parameters. All draws are keyed by (seed, step)."""
    adapter = model.adapter
    assert adapter is not None
    rng = np.random.default_rng((recipe.seed, step, 1))
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    tokens = torch.from_numpy(batch.tokens)
    products = torch.autocast("cpu", dtype=torch.bfloat16, enabled=recipe.product_dtype == torch.bfloat16)
    with torch.no_grad(), products:
        clean, contexts = model.commit_stream(tokens)
    stats = StepStats(0.0, 0.0, 0, int((batch.length - batch.answer).sum()), 0.0)
    for _ in range(recipe.views):
        blocks = draw_blocks(batch, int(batch.tokens.shape[1] * recipe.rows_per_token), recipe.noise, rng)
        with products:
            hidden = model.preview_stream(blocks, contexts)
        scored = blocks.loss
        weights = recipe.depth_decay ** blocks.block_index[scored].float()
        weights = weights / (weights.sum() * recipe.views)
        ids, targets = shortlist(blocks.targets[scored], generator)
        head = model.head.weight[ids]
        plain, _ = frozen_head_cross_entropy(hidden[scored], head, targets, weights)
        loss = plain * recipe.plain_weight if adapter.chain is not None else plain
        if adapter.chain is not None:
            refined = chain_hidden(model, adapter, hidden, clean, blocks)
            chain, _ = frozen_head_cross_entropy(refined[scored], head, targets, weights)
            loss = loss + chain
            stats.chain_loss += float(chain.detach())
        loss.backward()
        stats.plain_loss += float(plain.detach())
        stats.rows += int(scored.sum())
        stats.flops += noisy_flops(model, hidden.shape[0] * hidden.shape[1], len(ids), int(scored.sum()))
    stats.flops += 2.0 * layer_parameters(model) * tokens.numel()
    return stats


def layer_parameters(model: Transformer) -> int:
    """Weights of all layers' products."""
    return sum(p.numel() for name, p in model.layers.named_parameters() if name.endswith("weight") and p.dim() == 2)


def noisy_flops(model: Transformer, rows: int, shortlist: int, scored: int) -> float:
    """Floating-point operations in the matrix products of a noisy view, forward and backward (attention left out)."""
    adapter = model.adapter
    assert adapter is not None
    low_rank = sum(p.numel() for p in adapter.layers.parameters())
    chain = 0 if adapter.chain is None else sum(p.numel() for p in adapter.chain.parameters())
    heads = 1 if adapter.chain is None else 2
    body = rows * (4.0 * layer_parameters(model) + 6.0 * (low_rank + chain))
    return body + heads * 4.0 * scored * shortlist * model.config.hidden_size
