"""The preview mixer of one block as plain loops: the definition, and the spec's open choices.

Shapes: m rows of the block, C conv channels, K conv width, H value heads, d key head size, e value head size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...errors import UsageError
from ..conv.reference import two_sided
from .params import PreviewParams

EPS = 1e-6
"""Added to the sum of squares that q and k are normalised by."""


@dataclass(frozen=True)
class Variant:
    """Choices that published descriptions leave open; the defaults are our own form.

    `values`: what a row adds of the block, v or beta * v. `decayed_readout`: row i reads the history decayed by the
    product over rows <= i. `scaled_q`: logits of q / sqrt(d). `log_base`: l_iH = bias + c log(m / log_base).
    """

    values: Literal["v", "beta_v"] = "v"
    decayed_readout: bool = False
    scaled_q: bool = False
    log_base: float = 1.0


def preview(
    u_mC: Tensor,
    state_Hde: Tensor,
    ring: Tensor,
    params: PreviewParams,
    *,
    variant: Variant | None = None,
    g_mH: Tensor | None = None,
    beta_mH: Tensor | None = None,
) -> Tensor:
    """Outputs [m, H, e] of a block with conv inputs u, clean state and ring [K - 1, C]; before norm and gate.

        c = two-sided conv of u ;  q, k, v = split(c), q and k L2-normalised, key heads repeated to value heads
        r_i = S^T q_i / sqrt(d) ;  l_ij = scale_h <q_i, k_j> ;  l_iH = bias_h + c_h log m
        p_i = softmax(l_iH, l_i1 .. l_im) ;  o_i = p_iH r_i + sum_j p_ij v_j

    `g`, the log-decays, and `beta` are for variants; raises UsageError if one needs what isn't given.
    """
    variant = variant or Variant()
    heads, d, e = state_Hde.shape
    rows, key_size = len(u_mC), params.key_heads * params.key_dim
    c = two_sided(u_mC, ring, params.left_CK, params.right)
    queries = c[:, :key_size].reshape(rows, params.key_heads, d)
    keys = c[:, key_size : 2 * key_size].reshape(rows, params.key_heads, d)
    values = c[:, 2 * key_size :].reshape(rows, heads, e)
    if variant.values == "beta_v":
        if beta_mH is None:
            raise UsageError("values='beta_v' needs beta [m, H]")
        values = values * beta_mH[..., None]
    if variant.decayed_readout and g_mH is None:
        raise UsageError("decayed_readout needs the log-decays g [m, H]")
    out = torch.zeros_like(values)
    for h in range(heads):
        shared = h // (heads // params.key_heads)
        q, k = _normalise(queries[:, shared]), _normalise(keys[:, shared])
        history = params.history_bias_H[h] + params.history_c_H[h] * math.log(rows / variant.log_base)
        for i in range(rows):
            read = state_Hde[h].T @ q[i] * d**-0.5
            if variant.decayed_readout and g_mH is not None:
                read = read * g_mH[: i + 1, h].sum().exp()
            scale = params.logit_scale_H[h] * (d**-0.5 if variant.scaled_q else 1.0)
            logits = [history, *(scale * (q[i] @ k[j]) for j in range(rows))]
            p = torch.stack(logits).softmax(0)
            out[i, h] = p[0] * read + sum(p[1 + j] * values[j, h] for j in range(rows))
    return out


def _normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + EPS)
