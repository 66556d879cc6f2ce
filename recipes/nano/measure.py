"""What a trained variant is worth: losses and drift on held-out text, tokens per pass through the real engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from model import Data
from trifolium.api import LM
from trifolium.model import Transformer
from trifolium.train.autoregressive import answer_loss, next_token_weights
from trifolium.train.data import Conversation, collate
from trifolium.train.diffuse import divergence, masked_loss

THRESHOLD = 0.9


def drift(base: Transformer, model: Transformer, held_out: Sequence[Conversation]) -> dict[str, float]:
    """How far the commit path moved from the AR model: its loss, and KL(base || model) a token of the answers."""
    total = count = 0.0
    with torch.no_grad():
        for start in range(0, len(held_out), 16):
            batch = collate(held_out[start : start + 16])
            kept = next_token_weights(batch, 0.0) > 0
            tokens = torch.from_numpy(batch.tokens)
            hidden, _ = model.commit_stream(tokens)
            total += float(divergence(base, model, hidden, tokens, kept))
            count += float(kept.sum())
    return {"ar_loss": answer_loss(model, held_out), "base_ar_loss": answer_loss(base, held_out), "kl": total / count}


def blocks(model: Transformer, held_out: Sequence[Conversation], sizes: Sequence[int]) -> dict[str, Any]:
    """Loss and accuracy on fully masked blocks, by block size."""
    return {str(size): masked_loss(model, held_out, block_size=size) for size in sizes}


def speed(
    model: Transformer, data: Data, sizes: Sequence[int], prompts: int, tokens: int, advance: Callable[[], None]
) -> dict[str, Any]:
    """Tokens per pass of greedy answers in float32, by mode and block size, and whether verified equals ar."""
    model.pack(torch.float32, keep=True)
    lm = LM(model, data.tokenizer, name="nano")
    chosen = data.held_out_messages[:prompts]
    ar = [lm.generate(prompt, mode="ar", max_tokens=tokens) for prompt in chosen]
    out: dict[str, Any] = {}
    for size in sizes:
        found: dict[str, Any] = {}
        for mode in ("verified", "diffusion"):
            results = [
                lm.generate(
                    p, mode=mode, drafts="preview", block_size=size, max_tokens=tokens, threshold=THRESHOLD
                )
                for p in chosen
            ]  # fmt: skip
            found[mode] = sum(r.tokens for r in results) / sum(r.passes for r in results)
            if mode == "verified":
                found["equal_to_ar"] = all(a.token_ids == r.token_ids for a, r in zip(ar, results, strict=True))
                found["experts_per_pass"] = sum(r.experts_per_pass * r.passes for r in results) / sum(
                    r.passes for r in results
                )
            advance()
        out[str(size)] = found
    return out
