"""How good drafts are, on held-out text, without running the engine: the accepted prefix of fully masked blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..model.transformer import Transformer
from .data import Batch, Conversation, collate
from .noise import NoiseConfig, block_contexts, draw_blocks


@dataclass(frozen=True)
class DraftQuality:
    """`accuracy`: share of right proposals by depth, given a right prefix. `accepted`: mean accepted prefix of a block.

    In a fused pass the first token comes from the commit row, so tokens per pass are about 1 + accepted.
    """

    accuracy: list[float]
    accepted: float
    accepted_plain: float
    blocks: int


def draft_quality(
    model: Transformer, held_out: Sequence[Conversation], candidates: torch.Tensor, *, block_size: int, limit: int
) -> DraftQuality:
    """Draft fully masked blocks at random places of held-out answers, `limit` conversations at most.

    Proposals are made as decoding makes them, each conditioned on the ones before it, among `candidates` token ids.
    """
    adapter = model.adapter
    assert adapter is not None
    noise = NoiseConfig(block_sizes={block_size: 1.0}, full=1.0, prefix=0.0)
    reach, right = np.zeros(block_size), np.zeros(block_size)
    plain_total, blocks_total = 0.0, 0
    head = model.head.weight[candidates]
    for start in range(0, min(limit, len(held_out)), 8):
        batch: Batch = collate(held_out[start : start + 8])
        blocks = draw_blocks(batch, 8 * block_size, noise, np.random.default_rng(start))
        with torch.no_grad():
            clean, contexts = model.commit_stream(torch.from_numpy(batch.tokens))
            hidden = model.preview_stream(blocks, contexts)
            hidden = hidden.view(-1, block_size, hidden.shape[-1])
            targets, inside = blocks.targets.view(-1, block_size), blocks.loss.view(-1, block_size)
            plain = candidates[(hidden @ head.T).argmax(-1)] == targets
            context = block_contexts(clean, blocks).flatten(0, 1)
            carry = torch.zeros_like(context)
            previous = blocks.previous.view(-1, block_size)[:, 0]
            chained = torch.empty_like(plain)
            for j in range(block_size):
                h = hidden[:, j]
                if adapter.chain is not None:
                    carry = adapter.chain.step(h, model.embed(previous), context, carry)
                    h = h + carry
                previous = candidates[(h @ head.T).argmax(-1)]
                chained[:, j] = previous == targets[:, j]
        ok = (chained & inside).long().cumprod(1)
        reachable = torch.cat((torch.ones_like(ok[:, :1]), ok[:, :-1]), 1) * inside
        reach += reachable.sum(0).numpy()
        right += ok.sum(0).numpy()
        plain_total += float((plain & inside).long().cumprod(1).sum())
        blocks_total += len(ok)
    accuracy = [float(x) for x in np.round(right / np.maximum(reach, 1), 4)]
    return DraftQuality(accuracy, float(right.sum()) / blocks_total, plain_total / blocks_total, blocks_total)
