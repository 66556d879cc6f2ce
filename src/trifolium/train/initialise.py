"""Random weights that a new model can be trained from."""

from __future__ import annotations

import math

import torch
from torch import nn

from ..model.deltanet import DeltaNet
from ..model.norm import RMSNorm
from ..model.transformer import Transformer

STD = 0.02
"""Standard deviation of matrices, as most published models take it."""


def initialise(model: Transformer, seed: int) -> None:
    """Fill every weight: matrices normal, output products scaled down by sqrt(2 L), norms the identity.

    Delta-net decays as in Gated DeltaNet (arXiv:2412.06464): decay_log = log A with A uniform in (1, 16), and
    decay_bias such that softplus gives time steps log-uniform in (0.001, 0.1). Conv taps as torch's own Conv1d.
    """
    generator = torch.Generator().manual_seed(seed)
    deep = STD / math.sqrt(2 * model.config.num_layers)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith("adapter."):
                continue
            owner = model.get_submodule(name.rpartition(".")[0])
            part = name.rpartition(".")[2]
            if isinstance(owner, RMSNorm):
                p.fill_(1.0 - owner.offset)
            elif isinstance(owner, DeltaNet):
                _initialise_delta_net(part, p, owner, generator)
            elif p.dim() == 1:
                p.zero_()
            else:
                writes = ".out." in name or name.endswith((".down", ".down.weight"))
                p.normal_(std=deep if writes else STD, generator=generator)


def _initialise_delta_net(part: str, p: nn.Parameter, owner: DeltaNet, generator: torch.Generator) -> None:
    if part == "conv":
        bound = owner.sizes.conv_width**-0.5
        p.uniform_(-bound, bound, generator=generator)
    elif part == "decay_log":
        p.uniform_(1.0, 16.0, generator=generator).log_()
    else:
        step = torch.empty_like(p).uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp_()
        p.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus
