"""Training skills: what is learned is what merges; runs resume exactly, alone and as two; recipes end in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import trifolium
from tiny_engine import write_folder
from trifolium.checkpoint import open_checkpoint, read_skills, read_skills_config
from trifolium.checkpoint.skills_file import Skills as Merged
from trifolium.config import ModelConfig, SkillsConfig
from trifolium.errors import ConfigError, TensorMismatchError
from trifolium.model import Transformer
from trifolium.train.deltas import Deltas
from trifolium.train.dialogues import CHAT, Dialogue, DialogueFile, collate_dialogues
from trifolium.train.initialise import initialise
from trifolium.train.loop import METRICS, train
from trifolium.train.loss import frozen_head_divergence
from trifolium.train.recipe import DataShare, Skills
from trifolium.train.skills import DATA, SKILLS, SkillsTask, held_out_by_skill, train_skills, whole_turns

Make = Callable[..., Transformer]
RECIPE = Skills(
    kind="skills", data=(DataShare(file="a", share=0.75), DataShare(file="b", share=0.25, teacher=True)), steps=10,
    tokens_per_batch=256, parts=4, rank=4, alpha=8, learning_rate=2e-2, warmup=2, weight_decay=0.0, evaluate_every=5,
    held_out=4,
)  # fmt: skip


def plain(tiny_model: Make, seed: int = 0) -> Transformer:
    model = tiny_model(seed)
    model.adapter = None
    return model.requires_grad_(False)


def counting(skill: str, answer: int, seed: int) -> DialogueFile:
    """Sequences that count on; in every third run of five tokens the same `answer` is given instead."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(40):
        tokens = (int(rng.integers(61)) + np.arange(int(rng.integers(20, 60)))) % 61
        scored = np.arange(len(tokens)) // 5 % 3 == 2
        found.append(Dialogue(np.where(scored, answer, tokens), scored, skill))
    return DialogueFile(found[6:], found[:6])


def files() -> list[DialogueFile]:
    return [counting("count", 2, 1), counting(CHAT, 7, 2)]


def run(model: Transformer, out: Path, recipe: Skills = RECIPE, *, seed: int = 0, stop_at: int | None = None) -> Deltas:
    deltas = Deltas(model, recipe.rank, recipe.alpha, recipe.weights, seed=seed)
    deltas.attach(model)
    train(SkillsTask(model, deltas, recipe, files()), recipe, out, stop_at=stop_at)
    return deltas


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / METRICS).read_text().splitlines()]


def test_training_learns_and_what_was_learned_merges(tmp_path: Path, tiny_model: Make) -> None:
    model = plain(tiny_model)
    recipe = RECIPE.model_copy(update={"steps": 40})
    deltas = run(model, tmp_path, recipe)
    found = records(tmp_path)
    before = SkillsTask(plain(tiny_model), deltas, recipe, files()).evaluate()["skills"]["count"]
    after = found[-1]["held_out"]["skills"]["count"]
    assert after["loss"] < before["loss"] - 0.6  # random embeddings are small: no model of them is ever sure
    assert before["accuracy"] < 0.2 and after["accuracy"] > 0.9
    assert found[-1]["answer_tokens"] < found[-1]["tokens"] < found[-1]["padded_tokens"]
    for (name, p), q in zip(model.named_parameters(), plain(tiny_model).parameters(), strict=True):
        assert torch.equal(p, q), name
    # The model with deltas beside its weights is the one whose weights have them inside.
    skills = Merged.of(SkillsConfig(base_name="", base_fingerprint="", rank=4, alpha=8), deltas.pairs())
    merged = plain(tiny_model)
    for name, p in merged.named_parameters():
        skills.merge(name, p.data)
    tokens = torch.arange(33).view(3, 11) % 61
    expected, _ = model.commit_stream(tokens)
    with deltas.off():
        without, _ = model.commit_stream(tokens)
    torch.testing.assert_close(merged.commit_stream(tokens)[0], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(without, plain(tiny_model).commit_stream(tokens)[0])
    assert (without - expected).abs().max() > 0.1


def test_resumed_equals_uninterrupted(tmp_path: Path, tiny_model: Make) -> None:
    whole = run(plain(tiny_model), tmp_path / "whole")
    run(plain(tiny_model), tmp_path / "parts", stop_at=3)
    resumed = run(plain(tiny_model), tmp_path / "parts", seed=9)  # what it starts from comes from the checkpoint
    for (name, a), b in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert [r["loss"] for r in records(tmp_path / "whole")] == [r["loss"] for r in records(tmp_path / "parts")]


def test_the_loss_is_the_mean_of_the_files_by_their_shares(tiny_model: Make) -> None:
    model = plain(tiny_model)
    given, recipe = files(), RECIPE.model_copy(update={"data": (RECIPE.data[0], RECIPE.data[0])})
    deltas = Deltas(model, 4, 8.0)
    deltas.attach(model)
    task = SkillsTask(model, deltas, recipe, given)
    metrics = task.accumulate(2)
    total = weight = 0.0
    for n in range(8, 12):
        source, batch = task._mixture.batch(n)
        logits = model.vocabulary_logits(model.commit_stream(torch.from_numpy(batch.tokens))[0][:, :-1])
        scored = torch.from_numpy(batch.scored[:, 1:])
        losses = F.cross_entropy(logits[scored], torch.from_numpy(batch.tokens)[:, 1:][scored], reduction="sum")
        total += float(losses.detach()) / given[source].density
        weight += float(scored.sum()) / given[source].density
    assert metrics["loss"] == pytest.approx(total / weight, rel=1e-4)


def test_a_teacher_leads_chat_back_to_where_it_was(tmp_path: Path, tiny_model: Make) -> None:
    data = (DataShare(file="b", share=1.0, teacher=True),)
    recipe = RECIPE.model_copy(update={"data": data, "steps": 20, "evaluate_every": 1, "warmup": 0})
    model = plain(tiny_model)
    deltas = Deltas(model, 4, 8.0)
    for _, low_rank in deltas.items():
        torch.nn.init.normal_(low_rank.up, std=0.1, generator=torch.Generator().manual_seed(1))
    deltas.attach(model)
    train(SkillsTask(model, deltas, recipe, files()[1:]), recipe, tmp_path)
    kl = [r["held_out"]["skills"][CHAT]["kl"] for r in records(tmp_path)]
    assert 0 < kl[-1] < 0.3 * kl[0]


def test_fresh_deltas_change_nothing_and_drift_is_none(tiny_model: Make) -> None:
    model = plain(tiny_model)
    deltas = Deltas(model, 4, 8.0)
    deltas.attach(model)
    task = SkillsTask(model, deltas, RECIPE, files())
    held_out = task.evaluate()["skills"]
    assert held_out[CHAT]["kl"] == pytest.approx(0, abs=1e-5)
    assert held_out[CHAT]["agreement"] == 1
    assert "kl" not in held_out["count"]
    tokens = torch.arange(22).view(2, 11)
    torch.testing.assert_close(model.commit_stream(tokens)[0], plain(tiny_model).commit_stream(tokens)[0])


def test_the_divergence_and_its_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, teacher = (torch.randn(700, 5, generator=generator) for _ in range(2))
    head, weights = torch.randn(11, 5, generator=generator), torch.rand(700, generator=generator)
    hidden.requires_grad_(True)
    loss, agrees = frozen_head_divergence(hidden, head, teacher, weights)
    (found,) = torch.autograd.grad(loss, hidden)
    p, q = (teacher @ head.T).log_softmax(-1), (hidden @ head.T).log_softmax(-1)
    expected = (F.kl_div(q, p, reduction="none", log_target=True).sum(-1) * weights).sum()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(found, torch.autograd.grad(expected, hidden)[0])
    assert torch.equal(agrees, p.argmax(-1) == q.argmax(-1))


def test_whole_turns_are_runs_without_a_fault() -> None:
    kept = torch.tensor([[0, 1, 1, 0, 1, 1, 1], [1, 0, 1, 0, 0, 0, 0]]).bool()
    right = torch.tensor([[0, 1, 1, 0, 1, 0, 1], [1, 1, 0, 0, 0, 0, 0]]).bool()
    assert whole_turns(right, kept) == (2, 4)


def test_held_out_conversations_are_limited_by_skill() -> None:
    found = held_out_by_skill([d for file in files() for d in file.held_out], 4)
    assert {skill: len(dialogues) for skill, dialogues in found.items()} == {CHAT: 4, "count": 4}


def test_which_weights_change_is_by_name(tiny_model: Make, hybrid: ModelConfig) -> None:
    model = plain(tiny_model)
    assert len(Deltas(model, 2, 2.0).names) == 8
    assert Deltas(model, 2, 2.0, ("mixer.out", "ffn.down")).names == (
        "layers.0.mixer.out", "layers.0.ffn.down", "layers.1.mixer.out", "layers.1.ffn.down",
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"weights name no product: mixer\.outt"):
        Deltas(model, 2, 2.0, ("mixer.outt",))
    mixed = Transformer(hybrid)
    initialise(mixed, 0)
    deltas = Deltas(mixed, 2, 2.0)
    assert not any("router" in name for name in deltas.names)  # a choice hangs on them
    deltas.attach(mixed)
    batch = collate_dialogues(files()[0].training[:2])
    hidden, _ = mixed.commit_stream(torch.from_numpy(batch.tokens))
    hidden.sum().backward()
    assert all(low_rank.up.grad is not None for _, low_rank in deltas.items())


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe for a tiny model on disk, with a file of tool calls and one of chat."""
    write_folder(tmp_path / "base", with_adapter=False)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    lessons = [
        {
            "messages": [
                {"role": "user", "content": f"add {i}"},
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "content": str(i)},
                {"role": "assistant", "content": "done"},
            ],
            "skill": "tools",
            "complete": True,
        }
        for i in range(60)
    ]
    chat = [
        {"messages": [{"role": "user", "content": f"say {i}"}, {"role": "assistant", "content": "one two"}]}
        for i in range(120)
    ]
    for name, lines in (("lessons", lessons), ("chat", chat)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = tmp_path / "skills.toml"
    path.write_text(
        f'kind = "skills"\nbase = {json.dumps(str(tmp_path / "base"))}\nout = "run"\nsteps = 4\nrank = 2\nalpha = 2.0\n'
        "tokens_per_batch = 1024\nparts = 2\nlearning_rate = 1e-2\nwarmup = 1\nevaluate_every = 2\nheld_out = 2\n"
        '[[data]]\nfile = "lessons.jsonl"\nshare = 0.5\n[[data]]\nfile = "chat.jsonl"\nshare = 0.5\nteacher = true\n'
    )
    return path


def test_a_recipe_ends_in_a_file_that_loads(tmp_path: Path, recipe: Path) -> None:
    assert train_skills(recipe, stop_at=2)["step"] == 2
    early = (tmp_path / "run" / SKILLS).read_bytes()
    record = train_skills(recipe)
    assert record["step"] == 4 and set(record["held_out"]["skills"]) == {CHAT, "tools"}
    assert (tmp_path / "run" / SKILLS).read_bytes() != early
    about = json.loads((tmp_path / "run" / DATA).read_text())
    assert about["lessons.jsonl"]["skills"].keys() == {"tools"}
    base = open_checkpoint(tmp_path / "base")
    config = read_skills_config(tmp_path / "run" / SKILLS)
    assert (config.rank, config.base_fingerprint, len(config.recipe)) == (2, base.fingerprint(), 64)
    skills = read_skills(tmp_path / "run" / SKILLS, base, base.shapes)
    assert all(pair.b.any() for pair in skills.pairs.values())
    lm = trifolium.load(tmp_path / "base", adapter=None, skills=tmp_path / "run" / SKILLS)
    assert lm.fingerprint != base.fingerprint()
    # Another run may go on from them, and another rank may not.
    again = train_skills(recipe, out=tmp_path / "more", start_from=tmp_path / "run" / SKILLS, stop_at=1)
    assert again["step"] == 1
    recipe.write_text(recipe.read_text().replace("rank = 2", "rank = 3"))
    with pytest.raises(TensorMismatchError, match="another rank"):
        train_skills(recipe, out=tmp_path / "third", start_from=tmp_path / "run" / SKILLS)


def test_the_command_trains_skills(recipe: Path) -> None:
    from typer.testing import CliRunner

    from trifolium.cli.train import app

    done = CliRunner().invoke(app, [str(recipe), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["step"] == 4
    shown = CliRunner().invoke(app, ["--help-recipe"])
    assert "max_length = 1024" in shown.stdout and "parts = 4" in shown.stdout


def test_an_adapter_can_be_trained_on_skilled_weights(tmp_path: Path, recipe: Path) -> None:
    from trifolium.train.convert import train_recipe

    train_skills(recipe)
    path = tmp_path / "adapter.toml"
    path.write_text(
        f'base = {json.dumps(str(tmp_path / "base"))}\nskills = "run/skills.safetensors"\ndata = ["chat.jsonl"]\n'
        'out = "blocks"\nsteps = 1\ntokens_per_batch = 256\nviews = 1\nrank = 2\nchain_size = 8\nshortlist = 64\n'
    )
    assert train_recipe(path)["step"] == 1
    files = {"adapter": tmp_path / "blocks" / "adapter.safetensors", "skills": tmp_path / "run" / SKILLS}
    lm = trifolium.load(tmp_path / "base", **files)
    assert lm.model.adapter is not None
    assert lm.model.adapter.config.base_fingerprint == lm.fingerprint
