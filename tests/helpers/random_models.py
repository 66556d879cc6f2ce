"""Tiny random models whose sizes all differ, with every weight random: a part that is left out can't go unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trifolium.config import AdapterConfig, ModelConfig
from trifolium.model import Adapter, Transformer
from trifolium.ops.native import build


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a compiler."""
    monkeypatch.setattr(build, "native", lambda: build.Native(None, "not in this test"))


def tiny_config(family: str = "llama", **changes: Any) -> ModelConfig:
    """V 97, D 48, F 80, L 3, H 6, K 2, d 14: no two sizes agree, nor does H * d or K * d with another one."""
    values: dict[str, Any] = {
        "family": family,
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_layers": 3,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 14,
        "rms_norm_eps": 1e-5,
        "tie_embeddings": False,
        "qkv_bias": family == "qwen2",
        "qk_norm": family == "qwen3",
        "max_positions": 512,
    }
    return ModelConfig.parse({**values, **changes}, "test")


def tiny_hybrid(family: str = "qwen3_5_moe_text", **changes: Any) -> ModelConfig:
    """Three delta-net layers and one of attention; sizes all differ. V 97, D 48, H 6, K 2, d 16 of which 8 rotate.

    Delta net: 2 key heads of 10, 6 value heads of 14, 4 taps. Experts: 7, of which 3, of size 20, shared one 26.
    Dense feed-forward 36: all of qwen3_5_text's, and the second layer of qwen3_next.
    """
    dense = {"qwen3_5_text": ("dense",) * 4, "qwen3_next": ("experts", "dense", "experts", "experts")}
    values: dict[str, Any] = {
        "family": family,
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 36,
        "num_layers": 4,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "tie_embeddings": False,
        "qk_norm": True,
        "output_gate": True,
        "norm_offset": 1,
        "delta_net": {"key_heads": 2, "value_heads": 6, "key_dim": 10, "value_dim": 14, "conv_width": 4},
        "rope": {"rotary_dim": 8},
        "max_positions": 512,
        "mixers": ("delta_net", "delta_net", "delta_net", "attention"),
        "feed_forwards": dense.get(family, ("experts",) * 4),
    }
    if family != "qwen3_5_text":
        values["experts"] = {"count": 7, "top_k": 3, "size": 20, "shared_size": 26}
    if family == "clover_moe":
        values["preview"] = {"mask_token": 95, "block_size": 6}
    return ModelConfig.parse({**values, **changes}, "test")


def randomise(module: nn.Module, seed: int) -> None:
    """Matrices that keep the size of vectors, norm weights around 1, other vectors (biases, embeddings) around 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if name.endswith("norm.weight"):
                p.copy_(1 + 0.3 * noise)
            elif p.dim() == 1 or "embed" in name or "block_position" in name:
                p.copy_(noise * (1.0 if "embed" in name else 0.4))
            else:
                p.copy_(noise * 1.3 * p.shape[-1] ** -0.5)


def random_model(config: ModelConfig, dtype: torch.dtype = torch.float32, *, adapter: bool = True) -> Transformer:
    """A model with random weights, packed for the engine and with its plain weights kept."""
    model = Transformer(config)
    randomise(model, 1)
    if adapter:
        model.adapter = random_adapter(config)
    model.requires_grad_(False)
    model.pack(dtype, keep=True)
    return model


def random_adapter(config: ModelConfig, *, seed: int = 2, chain_size: int = 18) -> Adapter:
    """An adapter with random weights: rank 5, blocks of up to 7 positions."""
    adapter = Adapter(
        AdapterConfig(
            base_name="tiny",
            base_fingerprint="none",
            rank=5,
            alpha=4,
            max_block=7,
            chain_size=chain_size,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
        ),
        config,
    )
    randomise(adapter, seed)
    return adapter


def random_tokens(config: ModelConfig, count: int, seed: int = 3) -> list[int]:
    """Token ids."""
    return torch.randint(config.vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def with_threads(count: int, run: Callable[[], Any]) -> Any:
    """What `run` returns on `count` torch threads; the number of threads is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return run()
    finally:
        torch.set_num_threads(before)
