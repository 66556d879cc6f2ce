"""Verified equals AR on the default model's real weights, with previews by an untrained adapter and n-gram drafts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import trifolium
from trifolium.api import LM
from trifolium.config import AdapterConfig
from trifolium.evaluate.speed import read_prompts
from trifolium.model import Adapter


def with_adapter(lm: LM) -> LM:
    """Small random deltas: previews propose something other than the plain model's guess."""
    model = lm.model
    config = model.config
    adapter = Adapter(
        AdapterConfig(
            base_name="real",
            base_fingerprint="",
            rank=4,
            alpha=4,
            chain_size=16,
            block_size=4,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
        ),
        config,
    )
    adapter.reset(model.embed.weight, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in adapter.parameters():
            p += torch.randn(p.shape, generator=generator) * 0.01
    model.adapter = adapter.requires_grad_(False)
    return LM(model, lm.tokenizer)


@pytest.mark.real
@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_verified_equals_ar_on_real_weights(default_gguf: Path, dtype: str):
    lm = with_adapter(trifolium.load(default_gguf, adapter=None, dtype=dtype))
    accepted = 0
    for prompt, sampling in zip(read_prompts(None), [{}, {"temperature": 0.7, "top_p": 0.9, "seed": 1}], strict=False):
        ar = lm.generate(prompt, mode="ar", max_tokens=32, **sampling)
        # What previews cost here and now must not decide whether there are any.
        verified = lm.generate(prompt, max_tokens=32, free_rows=True, **sampling)
        assert verified.token_ids == ar.token_ids
        assert ar.tokens == ar.passes
        accepted += sum(verified.accepted_by.values())
    assert accepted > 0


@pytest.mark.real
def test_it_knows_the_capital_of_france(default_gguf: Path):
    result = trifolium.load(default_gguf).generate("Name the capital of France.", max_tokens=8)
    assert "Paris" in result.text and result.model
