"""A tiny random base with a word-level corpus, so that training runs in seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from trifolium.config import AdapterConfig, DeltaNetConfig, ExpertsConfig, ModelConfig, PreviewConfig
from trifolium.model import Adapter, Transformer
from trifolium.train.data import Conversation

CONFIG = ModelConfig(
    family="llama", vocab_size=61, hidden_size=24, intermediate_size=40, num_layers=2, num_heads=6, num_kv_heads=2,
    head_dim=4, max_positions=512,
)  # fmt: skip


def _model(seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(CONFIG)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    adapter = AdapterConfig(
        base_name="tiny", base_fingerprint="0", rank=4, alpha=4, chain_size=16, block_size=4, vocab_size=61,
        hidden_size=24, num_layers=2,
    )  # fmt: skip
    model.adapter = Adapter(adapter, CONFIG)
    model.adapter.reset(model.embed.weight, seed)
    return model


@pytest.fixture
def tiny_model() -> Callable[..., Transformer]:
    """Makes a random base with a fresh adapter, the same one for the same seed."""
    return _model


@pytest.fixture
def corpus() -> list[Conversation]:
    """Counting sequences with random strides: easy to draft once learned."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(48):
        start, length = int(rng.integers(61)), int(rng.integers(20, 90))
        out.append(Conversation((start + np.arange(length)) % 61, int(rng.integers(3, 8))))
    return out


@pytest.fixture
def hybrid() -> ModelConfig:
    """Two delta-net layers around one of gated attention, mixtures of experts in all; no two sizes agree."""
    return ModelConfig(
        family="clover_moe", vocab_size=61, hidden_size=24, intermediate_size=40, num_layers=3, num_heads=6,
        num_kv_heads=2, head_dim=4, qk_norm=True, output_gate=True, norm_offset=1, max_positions=512,
        delta_net=DeltaNetConfig(key_heads=2, value_heads=4, key_dim=7, value_dim=5, conv_width=3),
        experts=ExpertsConfig(count=5, top_k=2, size=9, shared_size=11), mixers=("delta_net", "attention", "delta_net"),
        feed_forwards=("experts",) * 3, preview=PreviewConfig(mask_token=3, block_size=6),
    )  # fmt: skip
