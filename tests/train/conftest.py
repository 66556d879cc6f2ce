"""A tiny random base with a word-level corpus, so that training runs in seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from trifolium.config import AdapterConfig, ModelConfig
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
