"""Autoregressive training: the weights of the loss, the routers' balance, and a model that learns from nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from trifolium.config import ModelConfig
from trifolium.model import Transformer
from trifolium.train.autoregressive import (
    PretrainTask,
    answer_loss,
    balance_loss,
    next_token_loss,
    next_token_weights,
)
from trifolium.train.data import Conversation, collate
from trifolium.train.initialise import initialise
from trifolium.train.loop import CHECKPOINT, METRICS, make_optimizer, train
from trifolium.train.recipe import Pretrain, Schedule

RECIPE = Pretrain(steps=8, tokens_per_batch=256, learning_rate=1e-2, warmup=2, evaluate_every=4, held_out=8)


def fresh(hybrid: ModelConfig, seed: int = 0) -> Transformer:
    """A model with random weights, all of which train."""
    model = Transformer(hybrid)
    initialise(model, seed)
    return model.requires_grad_(True)


def test_weights_name_the_predictions() -> None:
    batch = collate([Conversation(np.arange(9), 3), Conversation(np.arange(5), 4)])
    weights = next_token_weights(batch, 0.25)
    assert weights.shape == (2, 63)
    # Position t predicts t + 1: tokens 1 and 2 of the first prompt, 3 .. 8 of its answer; nothing past the end.
    assert weights[0].tolist() == [0.25] * 2 + [1.0] * 6 + [0.0] * 55
    assert weights[1].tolist() == [0.25] * 3 + [1.0] + [0.0] * 59


def test_loss_is_a_weighted_sum_over_next_tokens(hybrid: ModelConfig) -> None:
    model = fresh(hybrid)
    tokens = torch.randint(61, (3, 11), generator=torch.Generator().manual_seed(1))
    weights = torch.rand(3, 10, generator=torch.Generator().manual_seed(2))
    weights[1, 4:] = 0
    hidden, _ = model.commit_stream(tokens)
    found = next_token_loss(model, hidden, tokens, weights)
    expected = sum(
        weights[b, t] * F.cross_entropy(model.head(hidden[b, t]), tokens[b, t + 1]) for b in range(3) for t in range(10)
    )
    torch.testing.assert_close(found, expected)


def test_balance_is_one_when_even_and_grows_with_concentration() -> None:
    inside = torch.tensor([[True, True, False]])
    even = torch.full((1, 3, 5), 0.2) + torch.tensor([[[1e-6, 0, 0, 0, 0], [0, 1e-6, 0, 0, 0], [1, 0, 0, 0, 0]]])
    assert float(balance_loss([even], 1, inside)) == pytest.approx(1.0, abs=1e-4)
    lopsided = torch.tensor([0.92, 0.02, 0.02, 0.02, 0.02]).expand(1, 3, 5)
    assert float(balance_loss([lopsided], 1, inside)) == pytest.approx(5 * 0.92)
    # With two choices a row, half of them fall on each of the two likeliest experts.
    pair = torch.tensor([0.6, 0.3, 0.05, 0.03, 0.02]).expand(1, 3, 5)
    assert float(balance_loss([pair, even], 2, inside)) == pytest.approx((5 * (0.3 + 0.15) + 1) / 2, abs=1e-3)


def test_a_hybrid_learns_from_nothing_and_resumes_exactly(
    tmp_path: Path, hybrid: ModelConfig, corpus: list[Conversation]
) -> None:
    whole = fresh(hybrid)
    recipe = RECIPE.model_copy(update={"steps": 40})
    train(PretrainTask(whole, recipe, corpus[8:], corpus[:8]), recipe, tmp_path / "whole")
    records = [json.loads(line) for line in (tmp_path / "whole" / METRICS).read_text().splitlines()]
    assert records[-1]["loss"] < 0.75 * records[0]["loss"]
    assert records[-1]["held_out"]["loss"] == answer_loss(whole, corpus[:8])
    untouched = [n for n, p in fresh(hybrid).named_parameters() if torch.equal(p, whole.get_parameter(n))]
    assert not untouched
    parts, resumed = fresh(hybrid), fresh(hybrid, seed=5)
    train(PretrainTask(parts, recipe, corpus[8:], corpus[:8]), recipe, tmp_path / "parts", stop_at=3)
    assert (tmp_path / "parts" / CHECKPOINT).exists()
    train(PretrainTask(resumed, recipe, corpus[8:], corpus[:8]), recipe, tmp_path / "parts")
    for (name, a), b in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_rates_are_by_name_and_only_matrices_decay() -> None:
    schedule = Schedule(weight_decay=0.3, rates={"preview.right": 7.0})
    named = {"a.weight": torch.zeros(2, 3), "b.preview.right": torch.zeros(4, 3), "c.bias": torch.zeros(5)}
    groups = make_optimizer(named, schedule).param_groups
    assert [(g["rate"], g["weight_decay"], g["params"][0].shape) for g in groups] == [
        (1.0, 0.3, (2, 3)),
        (7.0, 0.3, (4, 3)),
        (1.0, 0.0, (5,)),
    ]
