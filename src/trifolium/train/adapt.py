"""Training an adapter on a frozen base: the clean stream once, then every noisy view's loss and gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..model.adapter import Adapter
from ..model.transformer import Transformer
from .data import Batch, BatchPlan, Conversation
from .evaluate import draft_quality
from .loss import Shortlist, frozen_head_cross_entropy
from .noise import NoisyBlocks, block_contexts, draw_blocks
from .recipe import Recipe


@dataclass
class StepStats:
    """Sums over a step; losses are means per weighted row, `rows` are those scored."""

    plain_loss: float
    chain_loss: float
    rows: int
    answer_tokens: int
    flops: float


class AdapterTask:
    """See loop.Task."""

    def __init__(
        self, model: Transformer, recipe: Recipe, training: Sequence[Conversation], held_out: Sequence[Conversation]
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.held_out = held_out
        self._plan = BatchPlan(training, recipe.tokens_per_batch, recipe.seed)
        self._shortlist = Shortlist(token_counts(training, model.config.vocab_size), recipe.shortlist, recipe.negatives)

    @property
    def module(self) -> nn.Module:
        """The adapter."""
        assert self.model.adapter is not None
        return self.model.adapter

    def accumulate(self, step: int) -> dict[str, float]:
        """See loop.Task."""
        stats = accumulate_gradients(self.model, self._plan.batch(step), self.recipe, self._shortlist, step)
        return {
            "total_rows": stats.rows,
            "total_answer_tokens": stats.answer_tokens,
            "loss": stats.chain_loss or stats.plain_loss,
            "plain_loss": stats.plain_loss,
            "flops": stats.flops,
        }

    def evaluate(self) -> dict[str, Any]:
        """How many drafts of a held-out block would be accepted."""
        if not self.held_out:
            return {}
        frequent, block = self._shortlist.frequent, self.recipe.block_size
        return asdict(draft_quality(self.model, self.held_out, frequent, block_size=block, limit=24))


def token_counts(conversations: Sequence[Conversation], vocab_size: int) -> Tensor:
    """How often each token occurs in the answers [V]."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for c in conversations:
        counts += torch.bincount(torch.from_numpy(c.tokens[c.answer :]), minlength=vocab_size)
    return counts


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
