"""Attention of commit rows whose rounding depends on nothing but the row's position, and of whole blocks and prompts.

Shapes: N rows, H query heads, K key heads, G = H / K, L context cells, d head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

TILE = 4
"""Rows of one product."""

ALIGN = 16
"""Floats of one cache line. Matrix libraries may round a row by how its start is aligned, so rows fill whole ones."""

GRID = 64
"""A row at position p reads cells 0 .. ceil((p + 1) / GRID) * GRID - 1, those past p masked: p alone sets the shape."""


def whole_cells(end: int) -> int:
    """How many cells a row reads that is the last of `end` positions."""
    return -(-end // GRID) * GRID


def attend_causal_exact(q_NHD: Tensor, keys_KLD: Tensor, values_KLD: Tensor, start: int) -> Tensor:
    """Commit rows at positions start .. start + N - 1 over cells that already hold their keys and values. -> [N, H, d].

    Every product has a shape that follows from the row's position only, so a row gets the same bits in any pass.
    """
    n, heads, d = q_NHD.shape
    kv_heads = keys_KLD.shape[0]
    out = [q_NHD[:0]]  # a request may have previews only
    width = d + -d % ALIGN
    if width > d:  # copies the context: no published model has such heads
        used = whole_cells(start + n)
        q_NHD, keys_KLD, values_KLD = (
            F.pad(t, (0, width - d)) for t in (q_NHD, keys_KLD[:, :used], values_KLD[:, :used])
        )
    row = 0
    while row < n:
        cells = whole_cells(start + row + 1)
        count = min(TILE, n - row, cells - (start + row))
        q = q_NHD[row : row + count]
        if count < TILE:
            q = F.pad(q, (0, 0, 0, 0, 0, TILE - count))
        q = q.view(TILE, kv_heads, -1, width).transpose(0, 1).reshape(kv_heads, -1, width)
        logits = torch.bmm(q, keys_KLD[:, :cells].transpose(1, 2)) * d**-0.5
        last = torch.arange(start + row, start + row + TILE).repeat_interleave(heads // kv_heads)
        logits.masked_fill_(torch.arange(cells) > last[:, None], -torch.inf)
        y = torch.bmm(logits.softmax(-1), values_KLD[:, :cells])
        out.append(y.view(kv_heads, TILE, -1, width).transpose(0, 1).reshape(TILE, heads, width)[:count, :, :d])
        row += count
    return torch.cat(out)


def attend_masked(q_NHD: Tensor, keys_KLD: Tensor, values_KLD: Tensor, visible_NL: Tensor) -> Tensor:
    """Rows over the visible cells, in one fused call. -> [N, H, d]."""
    y = F.scaled_dot_product_attention(
        q_NHD.transpose(0, 1)[None], keys_KLD[None], values_KLD[None], attn_mask=visible_NL[None, None], enable_gqa=True
    )
    return y[0].transpose(0, 1)
