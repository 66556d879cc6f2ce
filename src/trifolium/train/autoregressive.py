"""Autoregressive training: next-token cross-entropy over conversations, and a loss that spreads rows over experts.

Shapes: B sequences, T positions, V vocabulary, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..model.transformer import Transformer
from .data import Batch, BatchPlan, Conversation, collate
from .recipe import Pretrain
from .world import World


def next_token_weights(batch: Batch, prompt_weight: float) -> Tensor:
    """Weight [B, T - 1] of predicting token t + 1 at position t: 1 in answers, less in prompts, 0 past the end."""
    target = torch.arange(1, batch.tokens.shape[1])
    inside = target < torch.from_numpy(batch.length)[:, None]
    answer = target >= torch.from_numpy(batch.answer)[:, None]
    return inside * torch.where(answer, 1.0, prompt_weight)


def next_token_loss(model: Transformer, hidden_BTD: Tensor, tokens_BT: Tensor, weights: Tensor) -> Tensor:
    """Sum over positions of weight * cross-entropy of the next token, from final hidden vectors."""
    kept = weights > 0
    logits = model.vocabulary_logits(hidden_BTD[:, :-1][kept])
    return (F.cross_entropy(logits, tokens_BT[:, 1:][kept], reduction="none") * weights[kept]).sum()


def balance_loss(routers: Sequence[Tensor], top_k: int, inside_BT: Tensor) -> Tensor:
    """How unevenly the routers use their experts; 1 when they are all used alike.

    E * sum_e f_e p_e, with f_e the share of assignments and p_e the mean probability of expert e over real positions
    (Fedus et al. 2021, arXiv:2101.03961, eq. 4), averaged over layers. `routers`: probabilities [B, T, E].
    """
    losses = []
    for probabilities in routers:
        p = probabilities[inside_BT]
        chosen = torch.zeros_like(p).scatter(-1, p.topk(top_k, -1).indices, 1.0 / top_k)
        losses.append(p.shape[-1] * (chosen.mean(0) * p.mean(0)).sum())
    return torch.stack(losses).mean()


class PretrainTask:
    """See loop.Task. Trains every weight of the model."""

    def __init__(
        self,
        model: Transformer,
        recipe: Pretrain,
        training: Sequence[Conversation],
        held_out: Sequence[Conversation],
        world: World | None = None,
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.world = world or World()
        self.held_out = held_out[: recipe.held_out]
        self._plan = BatchPlan(training, recipe.tokens_per_batch, recipe.seed)

    @property
    def module(self) -> nn.Module:
        """The model."""
        return self.model

    def accumulate(self, step: int) -> dict[str, float]:
        """See loop.Task. In a world of several, each process takes its part of the batch; gradients are averaged."""
        batch = self._plan.batch(step)
        weights = next_token_weights(batch, self.recipe.prompt_weight)
        # Every process knows the whole batch, so the mean over all of it needs no exchange.
        scale = self.world.size / float(weights.sum())
        tokens, part = self.world.part(torch.from_numpy(batch.tokens)), self.world.part(weights)
        routers: list[Tensor] = []
        hidden, _ = self.model.commit_stream(tokens, routers)
        loss = next_token_loss(self.model, hidden, tokens, part) * scale
        metrics = {"loss": loss}
        total = loss
        if routers and self.recipe.balance:
            metrics["balance"] = self.balance(routers, self.world.part(torch.from_numpy(batch.length)))
            total = total + self.recipe.balance * metrics["balance"]
        total.backward()
        seen = {"total_tokens": float(batch.length.sum())}
        return {**seen, **{name: float(self.world.sum(x)) / self.world.size for name, x in metrics.items()}}

    def balance(self, routers: Sequence[Tensor], length_B: Tensor) -> Tensor:
        """balance_loss over the positions inside the sequences."""
        experts = self.model.config.experts
        assert experts is not None
        inside = torch.arange(routers[0].shape[1]) < length_B[:, None]
        return balance_loss(routers, experts.top_k, inside)

    def evaluate(self) -> dict[str, Any]:
        """Next-token loss on held-out answers."""
        return {"loss": answer_loss(self.model, self.held_out)} if self.held_out else {}


def answer_loss(model: Transformer, conversations: Sequence[Conversation]) -> float:
    """Mean next-token cross-entropy, in nats, over the conversations' answers."""
    total = count = 0.0
    with torch.no_grad():
        for start in range(0, len(conversations), 16):
            batch = collate(conversations[start : start + 16])
            weights = next_token_weights(batch, 0.0)
            tokens = torch.from_numpy(batch.tokens)
            hidden, _ = model.commit_stream(tokens)
            total += float(next_token_loss(model, hidden, tokens, weights))
            count += float(weights.sum())
    return total / count
