"""The preview mixer over many blocks at once; differentiable.

Shapes: m rows of a block, C conv channels, K conv width, H value heads, G value heads of one key head, d key head size,
e value head size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..conv import two_sided
from ..pointwise import unit
from .params import PreviewParams


def preview(u: Tensor, state: Tensor, ring: Tensor, params: PreviewParams) -> Tensor:
    """`reference.preview`, batched: u [..., m, C], state [..., H, d, e], ring [..., K - 1, C] -> [..., m, H, e].

    All blocks of a call have m rows. Value head h reads key head h // G.
    """
    key_size = params.key_heads * params.key_dim
    heads, d, _ = state.shape[-3:]
    grouped = (params.key_heads, heads // params.key_heads)
    c = two_sided(u, ring, params.left_CK, params.right)
    q, k, v = c.split((key_size, key_size, c.shape[-1] - 2 * key_size), dim=-1)
    # [..., key heads, G, m, n]; G is 1 for q and k
    q, k = (unit(t.unflatten(-1, (params.key_heads, 1, d)).movedim(-4, -2)) for t in (q, k))
    v = v.unflatten(-1, (*grouped, -1)).movedim(-4, -2)

    read = q @ state.unflatten(-3, grouped) * d**-0.5
    logits = (q @ k.mT) * params.logit_scale_H.view(*grouped, 1, 1)
    history = (params.history_bias_H + params.history_c_H * math.log(u.shape[-2])).view(*grouped, 1, 1)
    p = torch.cat((history.expand(*logits.shape[:-1], 1), logits), dim=-1).softmax(-1)
    out: Tensor = p[..., :1] * read + p[..., 1:] @ v
    joined: Tensor = out.movedim(-2, -4).flatten(-3, -2)
    return joined
