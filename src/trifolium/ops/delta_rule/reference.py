"""The gated delta rule (Yang et al. 2024, arXiv:2412.06464) as a loop over positions: the definition of the fast paths.

Shapes: B sequences, T positions, H value heads, d key head size, e value head size.
"""

from __future__ import annotations

import torch
from torch import Tensor


def recurrent(
    q_BTHd: Tensor, k_BTHd: Tensor, v_BTHe: Tensor, g_BTH: Tensor, beta_BTH: Tensor, state_BHde: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [B, T, H, e] and the state [B, H, d, e] after the last position, in the dtype of the inputs.

        S <- exp(g_t) S ;  u_t = beta_t (v_t - S^T k_t) ;  S <- S + k_t u_t^T ;  o_t = S^T q_t / sqrt(d)

    q and k come L2-normalised and repeated to value heads; g is the log of the decay, at most 0.
    """
    state = state_BHde
    outputs = [torch.zeros_like(v_BTHe[:, :0])]
    for t in range(q_BTHd.shape[1]):
        q, k, v = q_BTHd[:, t], k_BTHd[:, t], v_BTHe[:, t]
        state = state * g_BTH[:, t, :, None, None].exp()
        update = beta_BTH[:, t, :, None] * (v - torch.einsum("bhde,bhd->bhe", state, k))
        state = state + torch.einsum("bhd,bhe->bhde", k, update)
        outputs.append((torch.einsum("bhde,bhd->bhe", state, q) * q.shape[-1] ** -0.5)[:, None])
    return torch.cat(outputs, dim=1), state
