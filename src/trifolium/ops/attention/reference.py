"""Plain attention over one request: the definition that the fast paths are held to."""

from __future__ import annotations

import torch
from torch import Tensor


def attend(q_NHD: Tensor, keys_KLD: Tensor, values_KLD: Tensor, visible_NL: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v over the visible cells, in float64; head h reads key head h // (H / K) -> [N, H, d]"""
    group = q_NHD.shape[1] // keys_KLD.shape[0]
    keys = keys_KLD.double().repeat_interleave(group, 0)
    values = values_KLD.double().repeat_interleave(group, 0)
    logits = torch.einsum("nhd,hld->nhl", q_NHD.double(), keys) / q_NHD.shape[-1] ** 0.5
    weights = logits.masked_fill(~visible_NL[:, None], -torch.inf).softmax(-1)
    return torch.einsum("nhl,hld->nhd", weights, values).float()
