"""Full fine-tuning of an AR model to block diffusion: every weight trains, on the clean and the noisy stream at once.

Gradients flow from the noisy rows through what they read of the clean stream: keys and values, recurrent states, conv
inputs. The clean stream's own loss keeps the commit path a good AR model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..errors import ConfigError
from ..model.transformer import Transformer
from .autoregressive import PretrainTask, answer_loss, next_token_loss, next_token_weights
from .data import Conversation, collate
from .noise import NoiseConfig, NoisyBlocks, draw_blocks
from .recipe import Diffuse
from .world import World


class DiffuseTask(PretrainTask):
    """See loop.Task. The model's adapter holds the preview parameters; it has no low-rank deltas and no chain.

    `teacher`: the AR model that training starts from, for `teacher_weight`. Parameters whose names end with one of
    `recipe.frozen` don't train.
    """

    def __init__(
        self,
        model: Transformer,
        recipe: Diffuse,
        training: Sequence[Conversation],
        held_out: Sequence[Conversation],
        *,
        teacher: Transformer | None = None,
        world: World | None = None,
    ) -> None:
        super().__init__(model, recipe, training, held_out, world)
        assert model.adapter is not None
        self.diffuse = recipe
        self.teacher = teacher
        names = [name for name, _ in model.named_parameters()]
        if unused := [end for end in recipe.frozen if not any(name.endswith(end) for name in names)]:
            raise ConfigError(f"frozen names no parameter: {', '.join(unused)}")
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not name.endswith(recipe.frozen or ("\0",)))

    def accumulate(self, step: int) -> dict[str, float]:
        """See loop.Task; a world's processes share the batch's sequences and draw the same blocks."""
        recipe, world = self.diffuse, self.world
        batch = self._plan.batch(step)
        rng = np.random.default_rng((recipe.seed, step, 2))
        everything = draw_blocks(batch, int(batch.tokens.shape[1] * recipe.rows_per_token), recipe.noise, rng)
        weights = next_token_weights(batch, recipe.prompt_weight)
        scale = world.size / float(weights.sum())
        noisy_scale = world.size / max(1.0, float(everything.loss.sum()))
        blocks = everything.part(world)
        tokens, weights = world.part(torch.from_numpy(batch.tokens)), world.part(weights)
        routers: list[Tensor] = []
        hidden, contexts = self.model.commit_stream(tokens, routers)
        noisy = self.model.preview_stream(blocks, contexts)
        metrics = {
            "loss": preview_loss(self.model, noisy, blocks) * noisy_scale,
            "ar_loss": next_token_loss(self.model, hidden, tokens, weights) * scale,
        }
        total = recipe.preview_weight * metrics["loss"] + recipe.ar_weight * metrics["ar_loss"]
        if routers and recipe.balance:
            metrics["balance"] = self.balance(routers, world.part(torch.from_numpy(batch.length)))
            total = total + recipe.balance * metrics["balance"]
        if self.teacher is not None and recipe.teacher_weight:
            kept = weights > 0
            metrics["teacher_kl"] = divergence(self.teacher, self.model, hidden, tokens, kept) * world.size
            metrics["teacher_kl"] = metrics["teacher_kl"] / float(world.sum(kept.sum()))
            total = total + recipe.teacher_weight * metrics["teacher_kl"]
        total.backward()
        seen = {"total_tokens": float(batch.length.sum()), "total_rows": float(everything.loss.sum())}
        return {**seen, **{name: float(world.sum(x)) / world.size for name, x in metrics.items()}}

    def evaluate(self) -> dict[str, Any]:
        """Losses on held-out answers: of the commit path, and of fully masked blocks of 8."""
        if not self.held_out:
            return {}
        blocks = masked_loss(self.model, self.held_out, block_size=8)
        return {"ar_loss": answer_loss(self.model, self.held_out), **blocks}


def preview_loss(model: Transformer, hidden_BRD: Tensor, blocks: NoisyBlocks) -> Tensor:
    """Sum of the cross-entropy of masked targets, from the noisy rows' final hidden vectors."""
    return F.cross_entropy(
        model.vocabulary_logits(hidden_BRD[blocks.loss]), blocks.targets[blocks.loss], reduction="sum"
    )


def divergence(teacher: Transformer, model: Transformer, hidden: Tensor, tokens_BT: Tensor, kept: Tensor) -> Tensor:
    """Sum of KL(teacher || model) of the next token over the positions `kept` [B, T - 1]; `hidden` are the model's."""
    with torch.no_grad():
        before = teacher.vocabulary_logits(teacher.commit_stream(tokens_BT)[0][:, :-1][kept]).log_softmax(-1)
    after = model.vocabulary_logits(hidden[:, :-1][kept]).log_softmax(-1)
    return F.kl_div(after, before, reduction="sum", log_target=True)


def masked_loss(model: Transformer, conversations: Sequence[Conversation], *, block_size: int) -> dict[str, Any]:
    """Cross-entropy and accuracy on fully masked blocks at fixed random places, the same ones in every call.

    `accuracy`: by depth in the block, each row by itself.
    """
    noise = NoiseConfig(block_sizes={block_size: 1.0}, full=1.0, prefix=0.0)
    total, count = 0.0, 0
    right, seen = np.zeros(block_size), np.zeros(block_size)
    with torch.no_grad():
        for start in range(0, len(conversations), 16):
            batch = collate(conversations[start : start + 16])
            blocks = draw_blocks(batch, 4 * max(block_size, 16), noise, np.random.default_rng(start))
            _, contexts = model.commit_stream(torch.from_numpy(batch.tokens))
            hidden = model.preview_stream(blocks, contexts)
            total += float(preview_loss(model, hidden, blocks))
            count += int(blocks.loss.sum())
            correct = model.vocabulary_logits(hidden).argmax(-1) == blocks.targets
            right += (correct & blocks.loss).view(-1, block_size).sum(0).numpy()
            seen += blocks.loss.view(-1, block_size).sum(0).numpy()
    return {"masked_loss": total / count, "accuracy": [round(float(x), 4) for x in right / np.maximum(seen, 1)]}
