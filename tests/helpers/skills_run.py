"""Trains skills of a tiny model for some steps, alone or under torchrun: python skills_run.py OUT STEPS."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from random_models import tiny_config
from trifolium.model import Transformer
from trifolium.train.deltas import Deltas
from trifolium.train.dialogues import Dialogue, DialogueFile
from trifolium.train.distributed import LeadersFile
from trifolium.train.initialise import initialise
from trifolium.train.loop import train
from trifolium.train.recipe import DataShare, Skills
from trifolium.train.skills import SkillsTask
from trifolium.train.world import World


def main(out: Path, steps: int) -> None:
    torch.set_num_threads(1)
    world = World.join()
    model = Transformer(tiny_config())
    initialise(model, 0)
    rng = np.random.default_rng(0)
    files = []
    for start in (0, 50):
        lengths = rng.integers(20, 60, 24)
        lines = [Dialogue((start + i + np.arange(n)) % 97, np.arange(n) > n // 2) for i, n in enumerate(lengths)]
        files.append(DialogueFile(lines[4:], lines[:4]))
    # Batches of one to four rows: with two processes, some of them have none.
    recipe = Skills(
        kind="skills", data=(DataShare(file="a", share=0.7), DataShare(file="b", share=0.3, teacher=True)), steps=6,
        tokens_per_batch=256, parts=2, rank=3, alpha=3, learning_rate=1e-2, warmup=2, evaluate_every=3, held_out=2,
    )  # fmt: skip
    deltas = Deltas(model, recipe.rank, recipe.alpha)
    deltas.attach(model)
    task = SkillsTask(model, deltas, recipe, files, world=world)
    train(task, recipe, out, stop_at=steps, world=world, store=LeadersFile(out, world))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
