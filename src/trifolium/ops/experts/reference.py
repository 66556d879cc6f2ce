"""The definition that every way of running experts is held to."""

from __future__ import annotations

import torch
from torch import Tensor

from .routing import Routing


def experts(x_ND: Tensor, routing: Routing, gate_up_EFD: Tensor, down_EDF: Tensor) -> Tensor:
    """sum over a row's experts e of weight * down_e (silu(gate_e x) * up_e x), one row at a time in float64. -> [N, D].

    gate_up [E, 2F, D] holds gate over up, down is [E, D, F].
    """
    rows = []
    for x, chosen, weights in zip(x_ND.double(), routing.experts.tolist(), routing.weights.double(), strict=True):
        y = torch.zeros_like(x)
        for expert, weight in zip(chosen, weights, strict=True):
            gate, up = (gate_up_EFD[expert].double() @ x).chunk(2)
            y = y + weight * (down_EDF[expert].double() @ (gate * torch.sigmoid(gate) * up))
        rows.append(y)
    return torch.stack(rows).float()
