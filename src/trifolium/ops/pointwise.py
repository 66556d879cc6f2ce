"""Pointwise functions. Those called `exact` give every element the same bits wherever it stands; not for training.

torch's own silu, sigmoid and softplus take scalar code, which rounds differently, for the elements that are left over
when rows are cut into vectors and threads: which ones depends on the number of rows. exp, log1p and division don't.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SOFTPLUS_LINEAR = 20.0
"""Above this, softplus(x) is x to float32's precision, and exp would soon overflow."""


UNIT_EPS = 1e-6
"""Added to the squared length of q and k before they are scaled to length one, as the published delta nets do."""


def unit(x: Tensor) -> Tensor:
    """Vectors [..., d] scaled to length one; differentiable."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + UNIT_EPS)


def sigmoid_exact(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return torch.neg(x).exp_().add_(1.0).reciprocal_()


def silu_exact(x: Tensor) -> Tensor:
    """x / (1 + exp(-x))."""
    denominator = torch.neg(x).exp_().add_(1.0)
    return torch.div(x, denominator, out=denominator)


def softplus_exact(x: Tensor) -> Tensor:
    """log(1 + exp(x))."""
    return torch.where(x > SOFTPLUS_LINEAR, x, x.clamp(max=SOFTPLUS_LINEAR).exp_().log1p_())


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., 2F] -> [..., F], differentiable, and without the promise above."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def swiglu_exact(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of [..., 2F] -> [..., F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu_exact(gate).mul_(up)
