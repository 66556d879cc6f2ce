"""Fresh weights: every one of them is set, from the seed alone, and a model starts near the uniform distribution."""

from __future__ import annotations

import math

import torch

from trifolium.config import ModelConfig
from trifolium.model import Transformer
from trifolium.train.initialise import initialise


def test_every_weight_follows_from_the_seed(hybrid: ModelConfig) -> None:
    models = []
    for poison, seed in ((math.nan, 0), (1e9, 0), (0.0, 1)):
        model = Transformer(hybrid)
        with torch.no_grad():
            for p in model.parameters():
                p.fill_(poison)
        initialise(model, seed)
        models.append(dict(model.named_parameters()))
    first, again, other = models
    for name, p in first.items():
        assert torch.equal(p, again[name]), name
        fixed = name.endswith("norm.weight")
        assert torch.equal(p, other[name]) == fixed, name


def test_it_starts_uniform_and_norms_do_nothing(hybrid: ModelConfig) -> None:
    model = Transformer(hybrid)
    initialise(model, 0)
    for name, p in model.named_parameters():
        if name.endswith("norm.weight"):
            offset = 0.0 if name.endswith("gate_norm.weight") else 1.0
            assert bool((p + offset == 1).all()), name
    logits = model.head(model.commit_stream(torch.arange(29)[None])[0])
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    assert float(entropy.min()) > 0.98 * math.log(61)
    for i in (0, 2):
        step = torch.nn.functional.softplus(model.get_parameter(f"layers.{i}.mixer.decay_bias"))
        assert float(step.min()) >= 1e-3 and float(step.max()) <= 1e-1
