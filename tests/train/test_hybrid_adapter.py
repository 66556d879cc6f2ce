"""Low-rank adapters on hybrids: they learn through every mixer, and the base stays."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from trifolium.config import AdapterConfig, ModelConfig
from trifolium.model import Adapter, Transformer
from trifolium.train.data import Conversation
from trifolium.train.initialise import initialise
from trifolium.train.loop import METRICS, train_adapter
from trifolium.train.noise import NoiseConfig
from trifolium.train.recipe import Recipe

RECIPE = Recipe(
    data=("-",), steps=40, tokens_per_batch=256, views=1, rank=4, alpha=4, chain_size=16, block_size=4, shortlist=40,
    negatives=5, warmup=2, evaluate_every=20, learning_rate=2e-2, noise=NoiseConfig(block_sizes={2: 0.5, 4: 0.5}),
)  # fmt: skip


def make(config: ModelConfig, top_p: float) -> Transformer:
    model = Transformer(config)
    initialise(model, 0)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(4.0) if p.dim() > 1 else None
    adapter = AdapterConfig(
        base_name="tiny", base_fingerprint="0", rank=4, alpha=4, chain_size=16, block_size=4, coreset_top_p=top_p,
        vocab_size=config.vocab_size, hidden_size=config.hidden_size, num_layers=config.num_layers,
    )  # fmt: skip
    model.adapter = Adapter(adapter, config)
    model.adapter.reset(model.embed.weight, 0)
    return model


def test_adapters_of_hybrids_learn(tmp_path: Path, hybrid: ModelConfig, corpus: list[Conversation]) -> None:
    for top_p in (1.0, 0.6):
        model = make(hybrid, top_p)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        out = tmp_path / str(top_p)
        train_adapter(model, RECIPE, corpus[8:], corpus[:8], out)
        records = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
        assert records[-1]["loss"] < records[0]["loss"] * 0.9
        for name, p in model.named_parameters():
            unused = name == "adapter.block_position"
            assert (not torch.equal(p, before[name])) == name.startswith("adapter.") or unused, name
