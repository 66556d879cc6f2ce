"""Training learns, resumes exactly, survives a full disk, and leaves the base alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from trifolium.errors import ConfigError, CorruptFileError, TrainingError
from trifolium.model import Transformer
from trifolium.train import checkpointing
from trifolium.train.data import Conversation
from trifolium.train.loop import CHECKPOINT, METRICS, train_adapter
from trifolium.train.noise import NoiseConfig
from trifolium.train.recipe import Recipe

Make = Callable[..., Transformer]

RECIPE = Recipe(
    data=("-",), steps=12, tokens_per_batch=256, views=2, rank=4, alpha=4, chain_size=16, block_size=4, shortlist=40,
    negatives=5, warmup=2, evaluate_every=6, learning_rate=1e-2, noise=NoiseConfig(block_sizes={2: 0.5, 4: 0.5}),
)  # fmt: skip


def _parameters(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def test_training_learns_and_the_base_stays(tmp_path: Path, tiny_model: Make, corpus: list[Conversation]) -> None:
    model = tiny_model()
    before = _parameters(model)
    recipe = RECIPE.model_copy(update={"steps": 120})
    train_adapter(model, recipe, corpus[8:], corpus[:8], tmp_path)
    records = [json.loads(line) for line in (tmp_path / METRICS).read_text().splitlines()]
    assert records[-1]["loss"] < records[0]["loss"] * 0.6
    assert records[-1]["held_out"]["accepted"] > records[5]["held_out"]["accepted"] + 0.5
    for name, p in model.named_parameters():
        changed = not torch.equal(p, before[name])
        unused = name == "adapter.block_position"  # rows past the longest block stay zero
        assert changed == name.startswith("adapter.") or unused, name


def test_resumed_equals_uninterrupted(tmp_path: Path, tiny_model: Make, corpus: list[Conversation]) -> None:
    whole, parts = tiny_model(), tiny_model()
    train_adapter(whole, RECIPE, corpus[8:], corpus[:8], tmp_path / "whole")
    train_adapter(parts, RECIPE, corpus[8:], corpus[:8], tmp_path / "parts", stop_at=5)
    resumed = tiny_model(seed=9)  # everything that matters must come from the checkpoint, but for the base
    base = {n: p for n, p in tiny_model().state_dict().items() if not n.startswith("adapter.")}
    resumed.load_state_dict(base, strict=False)
    train_adapter(resumed, RECIPE, corpus[8:], corpus[:8], tmp_path / "parts")
    for (name, a), b in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / run / METRICS).read_text().splitlines()]
        for run in ("whole", "parts")
    ]
    assert losses[0] == losses[1]


def test_full_disk_keeps_the_last_checkpoint(
    tmp_path: Path, tiny_model: Make, corpus: list[Conversation], monkeypatch: pytest.MonkeyPatch
) -> None:
    train_adapter(tiny_model(), RECIPE, corpus[8:], corpus[:8], tmp_path, stop_at=3)
    kept = (tmp_path / CHECKPOINT).read_bytes()

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpointing, "save_file", full)
    with pytest.raises(TrainingError, match="No space left"):
        train_adapter(tiny_model(), RECIPE, corpus[8:], corpus[:8], tmp_path, stop_at=6)
    assert (tmp_path / CHECKPOINT).read_bytes() == kept
    assert not list(tmp_path.glob(".*"))


def test_foreign_and_damaged_checkpoints_are_refused(
    tmp_path: Path, tiny_model: Make, corpus: list[Conversation]
) -> None:
    train_adapter(tiny_model(), RECIPE, corpus[8:], corpus[:8], tmp_path, stop_at=1)
    other = RECIPE.model_copy(update={"rank": 8})
    model = tiny_model()
    assert model.adapter is not None
    for layer in model.adapter.layers:
        layer.qkv.up = torch.nn.Parameter(torch.zeros(40, 8))
        layer.qkv.down = torch.nn.Parameter(torch.zeros(8, 24))
    with pytest.raises(ConfigError, match="another recipe"):
        train_adapter(model, other, corpus[8:], corpus[:8], tmp_path)
    data = (tmp_path / CHECKPOINT).read_bytes()
    (tmp_path / CHECKPOINT).write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptFileError):
        train_adapter(tiny_model(), RECIPE, corpus[8:], corpus[:8], tmp_path)


def test_recipe_refuses_unknown_keys(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('data = ["x"]\nstepz = 3\n')
    with pytest.raises(ConfigError, match="stepz"):
        Recipe.load(path)
    path.write_text("data = [")
    with pytest.raises(ConfigError, match=r"r\.toml"):
        Recipe.load(path)


def test_bfloat16_products_train_the_same_thing(tmp_path: Path, tiny_model: Make, corpus: list[Conversation]) -> None:
    losses = {}
    for products in ("float32", "bfloat16"):
        recipe = RECIPE.model_copy(update={"products": products})
        model = tiny_model()
        train_adapter(model, recipe, corpus[8:], corpus[:8], tmp_path / products)
        assert all(p.dtype == torch.float32 for p in model.parameters())
        records = [json.loads(line) for line in (tmp_path / products / METRICS).read_text().splitlines()]
        losses[products] = [r["loss"] for r in records]
    assert losses["float32"] != losses["bfloat16"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)
