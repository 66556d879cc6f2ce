"""Training skills: next-token cross-entropy of every assistant turn, through low-rank deltas of a frozen base.

Shapes: B sequences, T positions, N scored positions, D hidden size.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..checkpoint import Checkpoint, open_checkpoint, read_skills, save_skills
from ..config import SkillsConfig
from ..errors import ConfigError, TrainingError, UnsupportedModelError, UsageError
from ..files import replacing
from ..model import Transformer
from ..text import ChatTemplate, encode_chat
from ..tools import format_of, lay_out, read_tools
from ..tools.layout import knows_tools
from .adapt import layer_parameters
from .convert import load_for_training
from .deltas import Deltas
from .dialogues import CHAT, Dialogue, DialogueBatch, DialogueFile, Encoder, Mixture, collate_dialogues, read_dialogues
from .distributed import LeadersFile
from .loop import METRICS, Progress, quiet, train
from .loss import frozen_head_cross_entropy, frozen_head_divergence
from .plot import plot_metrics
from .recipe import Skills
from .world import World

SKILLS = "skills.safetensors"
DATA = "data.json"
EVALUATED = 2048
"""Padded tokens of a batch that is only evaluated."""


class SkillsTask:
    """See loop.Task. `files`: one for each of the recipe's data, in order."""

    def __init__(
        self,
        model: Transformer,
        deltas: Deltas,
        recipe: Skills,
        files: Sequence[DialogueFile],
        *,
        world: World | None = None,
    ) -> None:
        self.model = model.requires_grad_(False)
        self.deltas = deltas
        self.recipe = recipe
        self.world = world or World()
        shares = [data.share for data in recipe.data]
        self._mixture = Mixture(
            [file.training for file in files], shares, max(1, recipe.tokens_per_batch // recipe.parts), recipe.seed
        )
        # A file's share of the padded tokens is its share of the loss, too, however much of it is scored.
        self._weights = [1 / file.density for file in files]
        self._held_out = held_out_by_skill([d for file in files for d in file.held_out], recipe.held_out)
        self._low_rank = sum(p.numel() for p in deltas.parameters())

    @property
    def module(self) -> nn.Module:
        """The deltas."""
        return self.deltas

    def accumulate(self, step: int) -> dict[str, float]:
        """See loop.Task. In a world of several, each process takes its rows of every part; gradients are averaged."""
        recipe = self.recipe
        parts = [self._mixture.batch(step * recipe.parts + i) for i in range(recipe.parts)]
        # Every process knows the whole step, so the mean over all of it needs no exchange.
        total = sum(self._weights[source] * float(batch.scored[:, 1:].sum()) for source, batch in parts)
        scored = sum(int(batch.scored[:, 1:].sum()) for _, batch in parts)
        padded = sum(batch.tokens.size for _, batch in parts)
        loss, right, flops = torch.zeros(()), torch.zeros(()), 0.0
        for source, batch in parts:
            teacher = recipe.data[source].teacher
            part, correct = self._part(batch, self._weights[source] / total, teacher)
            loss += part
            right += correct
            flops += self._flops(batch, teacher)
        if self.world.size > 1:
            for parameter in self.deltas.parameters():
                given = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = self.world.sum(given)
        return {
            "total_tokens": sum(int(batch.length.sum()) for _, batch in parts),
            "total_answer_tokens": scored,
            "total_padded_tokens": padded,
            "loss": float(self.world.sum(loss)),
            "accuracy": float(self.world.sum(right)) / scored,
            "flops": flops / self.world.size,
        }

    def _part(self, batch: DialogueBatch, weight: float, teacher: bool) -> tuple[Tensor, Tensor]:
        """Add one part's gradients; returns its loss and how many tokens were ranked first, as scalars."""
        tokens = self.world.part(torch.from_numpy(batch.tokens))
        kept = self.world.part(torch.from_numpy(batch.scored))[:, 1:]
        if not kept.any():
            return torch.zeros(()), torch.zeros(())
        head = self.model.head.weight
        hidden = self._hidden(tokens, kept)
        weights = torch.full((len(hidden),), weight)
        if teacher:
            with torch.no_grad(), self.deltas.off():
                plain = self._hidden(tokens, kept)
            loss, right = frozen_head_divergence(hidden, head, plain, weights)
        else:
            loss, right = frozen_head_cross_entropy(hidden, head, tokens[:, 1:][kept], weights)
        loss.backward()
        return loss.detach(), right.sum()

    def _hidden(self, tokens_BT: Tensor, kept: Tensor) -> Tensor:
        """Final hidden vectors [N, D] of the positions `kept` [B, T - 1], float32."""
        dtype = self.recipe.product_dtype
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            hidden, _ = self.model.commit_stream(tokens_BT)
        return hidden[:, :-1][kept].float()

    def _flops(self, batch: DialogueBatch, teacher: bool) -> float:
        """Floating-point operations in the matrix products of a part (attention left out)."""
        plain = layer_parameters(self.model)
        heads = int(batch.scored[:, 1:].sum()) * self.model.head.weight.numel()
        body = batch.tokens.size * ((6.0 if teacher else 4.0) * plain + 6.0 * self._low_rank)
        return body + (6.0 if teacher else 4.0) * heads

    def evaluate(self) -> dict[str, Any]:
        """Held-out answers of each skill, teacher-forced; for chat also the divergence from the plain base."""
        if not self._held_out or not self.world.leads:
            return {}
        found = {skill: self._measured(skill, dialogues) for skill, dialogues in self._held_out.items()}
        return {"loss": float(np.mean([one["loss"] for one in found.values()])), "skills": found}

    @torch.no_grad()
    def _measured(self, skill: str, dialogues: Sequence[Dialogue]) -> dict[str, float]:
        """`loss`, `accuracy`: of a token; `whole`: share of answers whose every token would be chosen greedily.

        Of chat also `kl`, KL(plain base || skilled) of a token, and `agreement`, whether both rank one token first.
        """
        sums: defaultdict[str, float] = defaultdict(float)
        tokens_scored, whole, answers = 0, 0, 0
        head = self.model.head.weight
        for batch in _batches(dialogues):
            tokens, kept = torch.from_numpy(batch.tokens), torch.from_numpy(batch.scored)[:, 1:]
            hidden = self._hidden(tokens, kept)
            ones = torch.ones(len(hidden))
            loss, right = frozen_head_cross_entropy(hidden, head, tokens[:, 1:][kept], ones)
            sums["loss"] += float(loss)
            sums["accuracy"] += float(right.sum())
            if skill == CHAT:
                with self.deltas.off():
                    plain = self._hidden(tokens, kept)
                divergence, agrees = frozen_head_divergence(hidden, head, plain, ones)
                sums["kl"] += float(divergence)
                sums["agreement"] += float(agrees.sum())
            everywhere = torch.ones_like(kept)
            everywhere[kept] = right
            good, turns = whole_turns(everywhere, kept)
            tokens_scored, whole, answers = tokens_scored + len(hidden), whole + good, answers + turns
        means = {name: round(value / tokens_scored, 5) for name, value in sums.items()}
        return {**means, "whole": round(whole / answers, 4), "answers": answers}


def whole_turns(right_BT: Tensor, kept_BT: Tensor) -> tuple[int, int]:
    """(turns whose every token is right, turns): a turn is a run of kept positions."""
    good = turns = 0
    for right, kept in zip(right_BT.numpy(), kept_BT.numpy(), strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], kept.astype(np.int8), [0]))))
        for start, stop in edges.reshape(-1, 2):
            turns += 1
            good += bool(right[start:stop].all())
    return good, turns


def held_out_by_skill(dialogues: Sequence[Dialogue], limit: int) -> dict[str, list[Dialogue]]:
    """The first `limit` held-out conversations of each skill, by name."""
    found: dict[str, list[Dialogue]] = {}
    for dialogue in dialogues:
        if dialogue.scored[1:].any() and len(found.setdefault(dialogue.skill, [])) < limit:
            found[dialogue.skill].append(dialogue)
    return {skill: found[skill] for skill in sorted(found) if found[skill]}


def _batches(dialogues: Sequence[Dialogue]) -> list[DialogueBatch]:
    """Batches of like lengths, of about EVALUATED padded tokens."""
    batches: list[list[Dialogue]] = [[]]
    for dialogue in sorted(dialogues, key=lambda d: len(d.tokens)):
        if batches[-1] and (len(batches[-1]) + 1) * len(dialogue.tokens) > EVALUATED:
            batches.append([])
        batches[-1].append(dialogue)
    return [collate_dialogues(batch) for batch in batches]


def load_files(recipe: Skills, folder: Path, checkpoint: Checkpoint) -> list[DialogueFile]:
    """The recipe's files (relative to `folder`), tokenised with the base's tokenizer and template."""
    tokenizer = checkpoint.tokenizer()
    template = ChatTemplate.of(tokenizer)
    end = tokenizer.eot_id if tokenizer.eot_id is not None else tokenizer.eos_id
    if end is None:
        raise ConfigError(f"{checkpoint.name} has no end-of-turn token, so answers can't be told apart")
    source, format = tokenizer.chat_template, format_of(tokenizer.chat_template)
    if knows_tools(source):
        raise UnsupportedModelError(
            f"the chat template of {checkpoint.name} lays out tools by itself: its calls are no plain turns to learn"
        )
    encoder = Encoder(
        lambda messages, tools: lay_out(source, format, messages, read_tools(tools)),
        lambda messages: encode_chat(tokenizer, template, messages),
        lambda text: tokenizer.encode(text, special=False),
        end,
    )
    return [read_dialogues(folder / data.file, encoder, recipe.max_length) for data in recipe.data]


def train_skills(
    recipe_path: Path,
    *,
    out: Path | None = None,
    start_from: Path | None = None,
    on_step: Callable[[Progress], None] = quiet,
    stop_at: int | None = None,
    compile_layers: bool = False,
) -> dict[str, Any]:
    """Train the skills that a recipe describes; returns the last metrics, or nothing where the run is done already.

    Continues from the checkpoint in `out` (the recipe's own by default), if there is one; else starts from the skills
    file `start_from`, with a fresh optimiser; else from nothing. Leaves skills.safetensors, data.json (what the files
    hold), metrics.jsonl and curves.png in `out`. Under torchrun, all processes call this together.
    """
    recipe = Skills.load(recipe_path)
    world = World.join()
    folder = out if out is not None else recipe_path.parent / recipe.out
    checkpoint = open_checkpoint(recipe.base)
    files = load_files(recipe, recipe_path.parent, checkpoint)
    model = load_for_training(checkpoint)
    deltas = Deltas(model, recipe.rank, recipe.alpha, recipe.weights, seed=recipe.seed)
    if start_from is not None:
        skills = read_skills(start_from, checkpoint, checkpoint.shapes)
        deltas.take(dict(skills.pairs), skills.config.scale)
    deltas.attach(model)
    if compile_layers:
        model.compile_streams()
    if world.leads:
        about = {data.file: file.about() for data, file in zip(recipe.data, files, strict=True)}
        _write(folder / DATA, json.dumps(about, indent=2) + "\n")
    task = SkillsTask(model, deltas, recipe, files, world=world)
    config = SkillsConfig(
        base_name=checkpoint.name,
        base_fingerprint=checkpoint.fingerprint(),
        rank=recipe.rank,
        alpha=recipe.alpha,
        recipe=hashlib.sha256(recipe_path.read_bytes()).hexdigest(),
    )
    try:
        store = LeadersFile(folder, world)
        record = train(task, recipe, folder, on_step=on_step, stop_at=stop_at, world=world, store=store)
    finally:
        if world.leads and (folder / METRICS).exists():
            try:
                save_skills(folder / SKILLS, config, deltas.pairs())
            except OSError as error:
                raise TrainingError(f"can't write {folder / SKILLS}: {os.strerror(error.errno or 0)}") from None
    if world.leads:
        with contextlib.suppress(UsageError):  # a courtesy: without matplotlib the metrics file says the same
            plot_metrics(folder / METRICS, folder / "curves.png")
    return record


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"can't write {path}: {error.strerror}") from None
