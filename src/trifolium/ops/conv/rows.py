"""The causal convolution for the rows of one request in a pass: inference only, each row's bits its own.

Shapes: N rows, C channels, K width (taps). A ring [K - 1, C] holds the inputs before the first row, oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..pointwise import silu_exact


def path_index(paths: Sequence[tuple[int, ...]], width: int) -> Tensor:
    """Where each row's K = `width` inputs stand in [ring; rows], oldest first. -> int64 [N, K].

    `paths[t]`: the row indices from the state to row t, itself included.
    """
    ring = range(width - 1)
    index = [[*ring, *(width - 1 + row for row in path)][-width:] for path in paths]
    return torch.tensor(index, dtype=torch.long).view(len(paths), width)


def rows(u_NC: Tensor, weight_CK: Tensor, ring: Tensor, index_NK: Tensor) -> Tensor:
    """SiLU of every row's K inputs times their taps, `index` from `path_index`. -> [N, C].

    Sums run from the oldest tap on, product and sum rounded apart: a fused multiply-add, like the scalar code that
    F.silu runs on the elements that don't fill a vector, would round some rows differently in other company.
    """
    inputs_NKC = torch.cat((ring, u_NC))[index_NK]
    total = inputs_NKC[:, 0] * weight_CK[:, 0]
    for j in range(1, weight_CK.shape[1]):
        total += inputs_NKC[:, j] * weight_CK[:, j]
    return silu_exact(total)


def ring_after(u_NC: Tensor, ring: Tensor, path: Sequence[int]) -> Tensor:
    """The ring [K - 1, C] after the rows of `path`: a new tensor with the last K - 1 inputs, oldest first."""
    last = list(path)[len(path) - min(len(path), len(ring)) :]
    return torch.cat((ring[len(last) :], u_NC[last]))
