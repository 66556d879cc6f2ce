"""Trains a tiny hybrid for some steps, alone or under torchrun: python sharded_run.py OUT STEPS."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from tiny_engine import hybrid_config
from trifolium.config import PreviewConfig
from trifolium.model import Adapter, Transformer
from trifolium.train.data import Conversation
from trifolium.train.diffuse import DiffuseTask
from trifolium.train.distributed import ShardedStore, shard
from trifolium.train.initialise import initialise
from trifolium.train.loop import train
from trifolium.train.noise import NoiseConfig
from trifolium.train.recipe import Diffuse
from trifolium.train.world import World


def main(out: Path, steps: int) -> None:
    torch.set_num_threads(1)
    world = World.join()
    preview = PreviewConfig(mask_token=5, block_size=4)
    model = Transformer(hybrid_config().model_copy(update={"family": "clover_moe", "preview": preview}))
    initialise(model, 0)
    model.adapter = Adapter.native(model.config, "tiny")
    rng = np.random.default_rng(0)
    corpus = [Conversation((i * 7 + np.arange(int(rng.integers(20, 60)))) % 101, 4) for i in range(40)]
    # Without the balance loss, which every process takes over its own rows, the curves are the same.
    recipe = Diffuse(
        steps=8, tokens_per_batch=512, learning_rate=3e-3, warmup=2, evaluate_every=4, held_out=4, balance=0.0,
        noise=NoiseConfig(block_sizes={4: 1.0}),
    )  # fmt: skip
    task = DiffuseTask(model, recipe, corpus[4:], corpus[:4], world=world)
    shard(model, world)
    train(task, recipe, out, stop_at=steps, world=world, store=ShardedStore(out, world))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
