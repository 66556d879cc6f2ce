"""Which experts see which rows.

Letters: N rows, E experts, k chosen ones, m rows of a block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Routing(NamedTuple):
    """The k experts of each row [N, k], likeliest first, and their weights [N, k] in float32."""

    experts: Tensor
    weights: Tensor

    def distinct(self) -> int:
        """How many experts are chosen by any row."""
        return len(self.experts.unique())


def route(logits_NE: Tensor, top_k: int, renormalise: bool, allowed_NE: Tensor | None = None) -> Routing:
    """Softmax over all experts in float32, then the top k; among equals the lowest index comes first.

    `renormalise`: weights sum to one. `allowed`: a row's experts are chosen among these only, and its weights always
    sum to one. At least k experts must be allowed.
    """
    probabilities = logits_NE.float().softmax(-1)
    if allowed_NE is not None:
        probabilities = probabilities.masked_fill(~allowed_NE, -1.0)
    weights, experts = probabilities.sort(dim=-1, descending=True, stable=True)
    weights, experts = weights[..., :top_k], experts[..., :top_k].contiguous()
    if renormalise or allowed_NE is not None:
        weights = weights / weights.sum(-1, keepdim=True)
    return Routing(experts, weights.contiguous())


def coresets(probabilities: Tensor, top_p: float, least: int) -> Tensor:
    """The experts that a block's rows may use: router probabilities [..., m, E] -> bool [..., E].

    The smallest set whose mass, averaged over the rows, reaches `top_p`, and that has at least `least` experts. All of
    them at 1.0, where rounding must not drop any.
    """
    mean = probabilities.mean(-2)
    if top_p >= 1.0:
        return torch.ones_like(mean, dtype=torch.bool)
    mass, order = mean.sort(dim=-1, descending=True, stable=True)
    before = mass.cumsum(-1) - mass
    keep = (before < top_p) | (torch.arange(mass.shape[-1]) < least)
    return torch.zeros_like(keep).scatter(-1, order, keep)
