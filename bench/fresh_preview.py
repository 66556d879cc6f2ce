"""How near a fresh preview is to the commit path of an AR hybrid that was never trained for it.

    python bench/fresh_preview.py [runs/nano] [--masses 0.5 0.9 0.95 0.99]

The model is the AR one of the nano recipe (`python recipes/nano/make.py pretrain`). For blocks of masks at random
places of held-out conversations: KL(commit || preview) of the first row's prediction. "Commit" is the same mask row
run through the recurrence alone, which ignores the rest of the block.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from trifolium.model import Adapter
from trifolium.train.data import collate
from trifolium.train.noise import NoiseConfig, draw_blocks

NANO = Path(__file__).parents[1] / "recipes" / "nano"
SIZES = (1, 4, 8, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/nano"), help="folder of the nano recipe's run")
    parser.add_argument("--masses", type=float, nargs="+", default=[0.5, 0.9, 0.95, 0.99])
    options = parser.parse_args()
    sys.path.insert(0, str(NANO))
    from model import clover, load_data, load_weights, model_config

    model = load_weights(options.run / "ar.safetensors", clover(model_config()))
    data = load_data(options.run / "tokenizer", model.config.vocab_size, 384)
    assert model.adapter is not None
    config = model.adapter.config
    batch = collate(data.held_out[:16])
    print("| history mass at the start | " + " | ".join(f"KL, block {m}" for m in SIZES) + " |")
    print("| --- " * (len(SIZES) + 1) + "|")
    with torch.no_grad():
        _, contexts = model.commit_stream(torch.from_numpy(batch.tokens))
        for mass in options.masses:
            cells = []
            for m in SIZES:
                noise = NoiseConfig(block_sizes={m: 1.0}, full=1.0, prefix=0.0)
                blocks = draw_blocks(batch, 8 * m, noise, np.random.default_rng(0))
                single = draw_blocks(
                    batch, 8, NoiseConfig(block_sizes={1: 1.0}, full=1.0, prefix=0.0), np.random.default_rng(0)
                )
                model.adapter = Adapter(config.model_copy(update={"delta_preview": "causal"}), model.config)
                alone = model.head(model.preview_stream(single, contexts)).log_softmax(-1)
                model.adapter = Adapter(config, model.config)
                for name, p in model.adapter.named_parameters():
                    if name.endswith("history_bias"):
                        p.fill_(math.log(mass / (1 - mass)))
                first = blocks.split(model.preview_stream(blocks, contexts))[:, :, 0]
                preview = model.head(first).log_softmax(-1)
                assert torch.equal(blocks.starts, single.starts)
                kl = F.kl_div(preview, alone, reduction="sum", log_target=True) / preview[..., 0].numel()
                cells.append(f"{float(kl):.3f}")
            print(f"| {mass:.2f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
