"""Full fine-tuning to block diffusion: what trains, what stays, and that gradients cross between the streams."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from trifolium.config import ModelConfig
from trifolium.model import Adapter, Transformer
from trifolium.train.data import Conversation, collate
from trifolium.train.diffuse import DiffuseTask, divergence, masked_loss, preview_loss
from trifolium.train.initialise import initialise
from trifolium.train.loop import METRICS, train
from trifolium.train.noise import NoiseConfig, draw_blocks
from trifolium.train.recipe import Diffuse

NOISE = NoiseConfig(block_sizes={2: 1.0, 3: 1.0}, full=0.6, prefix=0.2)
RECIPE = Diffuse(
    steps=24, tokens_per_batch=256, learning_rate=1e-2, warmup=2, evaluate_every=12, held_out=8, noise=NOISE,
    rates={"preview.logit_scale": 9.0},
)  # fmt: skip


def fresh(hybrid: ModelConfig, seed: int = 0, *, causal: bool = False) -> Transformer:
    """A model with random weights and fresh preview parameters."""
    model = Transformer(hybrid)
    initialise(model, seed)
    adapter = Adapter.native(hybrid, "tiny")
    if causal:
        adapter = Adapter(adapter.config.model_copy(update={"delta_preview": "causal"}), hybrid)
    model.adapter = adapter
    return model


def test_it_learns_and_frozen_parameters_stay(tmp_path: Path, hybrid: ModelConfig, corpus: list[Conversation]) -> None:
    model, before = fresh(hybrid), fresh(hybrid)
    recipe = RECIPE.model_copy(update={"frozen": ("preview.history_c", "preview.right")})
    train(DiffuseTask(model, recipe, corpus[8:], corpus[:8]), recipe, tmp_path)
    records = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert records[-1]["loss"] < 0.97 * records[0]["loss"]
    assert records[-1]["held_out"]["masked_loss"] < records[11]["held_out"]["masked_loss"]
    same = {name for name, p in before.named_parameters() if torch.equal(p, model.get_parameter(name))}
    assert same == {f"adapter.layers.{i}.preview.{part}" for i in (0, 2) for part in ("history_c", "right")}
    moved = [
        (model.get_parameter(name) - p).abs().max().item()
        for name, p in before.named_parameters()
        if name.endswith(("logit_scale", "history_bias"))
    ]
    assert moved[0] > 3 * moved[1]  # logit_scale has a rate of its own


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_the_noisy_stream_reach_the_clean_one(
    hybrid: ModelConfig, corpus: list[Conversation], causal: bool
) -> None:
    model = fresh(hybrid, causal=causal).requires_grad_(True)
    batch = collate(corpus[:5])
    blocks = draw_blocks(batch, 12, NoiseConfig(block_sizes={3: 1.0}, full=1.0, prefix=0.0), np.random.default_rng(0))
    _, contexts = model.commit_stream(torch.from_numpy(batch.tokens))
    preview_loss(model, model.preview_stream(blocks, contexts), blocks).backward()
    # Fully masked blocks embed one token; every other gradient of the embedding came through the contexts or the head.
    decays = [model.get_parameter(f"layers.{i}.mixer.decay_log").grad for i in (0, 2)]
    assert all(g is not None and bool((g != 0).all()) for g in decays)
    taps = model.get_parameter("adapter.layers.0.preview.right").grad
    assert (taps is None) == causal or not bool((taps == 0).all())


def test_divergence_is_zero_to_itself_and_sums_over_positions(hybrid: ModelConfig, corpus: list[Conversation]) -> None:
    base, other = fresh(hybrid), fresh(hybrid, seed=3)
    tokens = torch.from_numpy(collate(corpus[:3]).tokens)
    kept = torch.rand(tokens[:, 1:].shape, generator=torch.Generator().manual_seed(0)) < 0.3
    with torch.no_grad():
        own, _ = base.commit_stream(tokens)
        hidden, _ = other.commit_stream(tokens)
        assert float(divergence(base, base, own, tokens, kept)) == pytest.approx(0.0, abs=1e-4)
        p, q = (m.head(h[:, :-1][kept]).softmax(-1) for m, h in ((base, own), (other, hidden)))
        expected = (p * (p / q).log()).sum()
        torch.testing.assert_close(divergence(base, other, hidden, tokens, kept), expected, rtol=1e-3, atol=1e-5)
        assert float(expected) > 0


def test_a_teacher_holds_the_commit_path(tmp_path: Path, hybrid: ModelConfig, corpus: list[Conversation]) -> None:
    drift = {}
    for weight in (0.0, 10.0):
        model, base = fresh(hybrid), fresh(hybrid).requires_grad_(False)
        recipe = RECIPE.model_copy(update={"teacher_weight": weight, "ar_weight": 0.0, "steps": 8})
        train(DiffuseTask(model, recipe, corpus[8:], corpus[:8], teacher=base), recipe, tmp_path / str(weight))
        batch = collate(corpus[:8])
        tokens = torch.from_numpy(batch.tokens)
        kept = torch.ones_like(tokens[:, 1:], dtype=torch.bool)
        with torch.no_grad():
            drift[weight] = float(divergence(base, model, model.commit_stream(tokens)[0], tokens, kept))
    assert drift[10.0] < 0.5 * drift[0.0]


def test_masked_loss_is_repeatable_and_reports_every_depth(hybrid: ModelConfig, corpus: list[Conversation]) -> None:
    model = fresh(hybrid)
    found = masked_loss(model, corpus[:8], block_size=5)
    assert found == masked_loss(model, corpus[:8], block_size=5)
    assert len(found["accuracy"]) == 5
    assert found["masked_loss"] == pytest.approx(np.log(61), abs=0.2)  # nothing was learned yet
