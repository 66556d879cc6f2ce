"""Five ways to preview, each one step more of the published design, trained on the same batches and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from model import HERE, clover, load_weights
from trifolium.config import ModelConfig
from trifolium.model import Transformer
from trifolium.train.recipe import Diffuse

SEEDS = (1, 2)
BLOCK_SIZES = (4, 8, 16, 32)

HISTORY_MASS = 0.95
"""Share of the history slot at the start, while the block's logits are near zero."""
USUAL_BLOCK = 8
"""Without calibration the bias alone must set the history's mass, which it can for one block size only."""

_SCALE, _BIAS, _C, _RIGHT = "preview.logit_scale", "preview.history_bias", "preview.history_c", "preview.right"


@dataclass(frozen=True)
class Variant:
    """`bias` and `c`: the history slot's initial logit, bias + c log B. `frozen`: what stays as it is."""

    name: str
    title: str
    bias: float = math.log(HISTORY_MASS / (1 - HISTORY_MASS) * USUAL_BLOCK)
    c: float = 0.0
    causal: bool = False
    frozen: tuple[str, ...] = ()

    def model(self, config: ModelConfig, ar: Path) -> Transformer:
        """The AR model with this variant's preview parameters."""
        model = load_weights(ar, clover(config, causal=self.causal))
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name.endswith(_BIAS):
                    p.fill_(self.bias)
                elif name.endswith(_C):
                    p.fill_(self.c)
        return model

    def recipe(self, seed: int, quick: bool) -> Diffuse:
        """The same for all variants, but for what is frozen."""
        changes: dict[str, object] = {"seed": seed, "frozen": self.frozen}
        if quick:
            changes |= {"steps": 2, "tokens_per_batch": 512, "held_out": 4}
        return Diffuse.load(HERE / "diffuse.toml").model_copy(update=changes)


VARIANTS = (
    Variant("causal", "delta-net causal inside the block", causal=True, frozen=(_SCALE, _BIAS, _C, _RIGHT)),
    Variant("no-history", "bidirectional, no history slot", bias=-1e4, frozen=(_BIAS, _C, _RIGHT)),
    Variant("history", "with the history slot", frozen=(_C, _RIGHT)),
    Variant("right-taps", "plus right taps", frozen=(_C,)),
    Variant("calibration", "plus block-size calibration", bias=math.log(HISTORY_MASS / (1 - HISTORY_MASS)), c=1.0),
)
