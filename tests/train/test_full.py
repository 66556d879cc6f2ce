"""Full fine-tuning by recipe: a hybrid folder in, a clover_moe folder out that runs; and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import trifolium
from tiny_engine import hybrid_config, write_folder
from trifolium.checkpoint import open_checkpoint, write_hf
from trifolium.config import ModelConfig
from trifolium.errors import ConfigError, UnsupportedModelError, UsageError
from trifolium.model import Transformer
from trifolium.train.full import train_full
from trifolium.train.initialise import initialise
from trifolium.train.vocabulary import train_vocabulary

SENTENCES = ["one two three four five six", "red green blue red green blue", "a b c d e f g h"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An AR hybrid with experts in every layer and a tokenizer of its own."""
    changes: dict[str, Any] = {"vocab_size": 300, "feed_forwards": ("experts",) * 4, "max_positions": 400}
    config = ModelConfig.parse({**hybrid_config().model_dump(), **changes}, "test")
    model = Transformer(config)
    initialise(model, 0)
    folder = write_hf(tmp_path / "base", config, ((name, p.detach()) for name, p in model.named_parameters()))
    train_vocabulary(SENTENCES, 300, folder)
    return folder


@pytest.fixture
def recipe(tmp_path: Path, base: Path) -> Path:
    lines = []
    for i, text in enumerate(SENTENCES * 12):
        messages = [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": text * 3}]
        lines.append({"messages": messages, "complete": True})
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    path = tmp_path / "full.toml"
    path.write_text(
        'kind = "full"\nbase = "base"\ndata = ["data.jsonl"]\nout = "run"\nsteps = 4\ntokens_per_batch = 256\n'
        "mask_token = 3\nblock_size = 4\nteacher_weight = 0.1\nevaluate_every = 2\nheld_out = 2\nmax_length = 96\n"
        "noise = { block_sizes = { 4 = 1 } }\n".replace('"base"', json.dumps(str(base)))
    )
    return path


def test_it_trains_resumes_and_runs(tmp_path: Path, recipe: Path) -> None:
    record = train_full(recipe, stop_at=2)
    assert record["step"] == 2
    assert not (tmp_path / "run" / "model").exists()
    record = train_full(recipe)
    assert record["step"] == 4
    assert record["teacher_kl"] > 0
    checkpoint = open_checkpoint(tmp_path / "run" / "model")
    assert checkpoint.config.family == "clover_moe"
    assert checkpoint.config.preview is not None
    assert (checkpoint.config.preview.mask_token, checkpoint.config.preview.block_size) == (3, 4)
    lm = trifolium.load(tmp_path / "run" / "model", progress=False)
    answers = [
        lm.generate("say 1", mode=mode, max_tokens=5, ignore_eos=True) for mode in ("ar", "verified", "diffusion")
    ]
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[2].tokens == 5
    assert train_full(recipe) == {}  # nothing is left to do
    # What came out is a base for the next run, with its own mask and preview parameters.
    again = tmp_path / "again.toml"
    text = recipe.read_text().replace("mask_token = 3\n", "").replace('out = "run"', 'out = "second"')
    again.write_text(text.replace(str(tmp_path / "base"), str(tmp_path / "run" / "model")))
    assert train_full(again)["step"] == 4
    kept = open_checkpoint(tmp_path / "second" / "model").config.preview
    assert kept == checkpoint.config.preview.model_copy(update={"block_size": 4})


def test_what_it_refuses(tmp_path: Path, recipe: Path) -> None:
    text = recipe.read_text()
    recipe.write_text(text.replace("mask_token = 3\n", ""))
    with pytest.raises(ConfigError, match="needs mask_token"):
        train_full(recipe)
    recipe.write_text(text.replace("mask_token = 3", "mask_token = 300"))
    with pytest.raises(ConfigError, match="outside the vocabulary of 300"):
        train_full(recipe)
    write_folder(tmp_path / "llama", with_adapter=False)
    recipe.write_text(text.replace(str(tmp_path / "base"), str(tmp_path / "llama")))
    with pytest.raises(UnsupportedModelError, match="Train an adapter instead"):
        train_full(recipe)
    recipe.write_text(text + "stepz = 3\n")
    with pytest.raises(ConfigError, match="stepz"):
        train_full(recipe)


def test_the_command_tells_recipes_apart(recipe: Path) -> None:
    from typer.testing import CliRunner

    from trifolium.cli.train import app

    done = CliRunner().invoke(app, [str(recipe), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["step"] == 4
    done = CliRunner().invoke(app, [str(recipe), "--compile"])
    assert isinstance(done.exception, UsageError)
    assert torch.get_num_threads() >= 1
