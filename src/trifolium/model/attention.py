"""Grouped-query attention with rotary positions, as a mixer: project, mix; commit and preview are its definition.

Shapes: N rows of a pass, B sequences, T clean positions, R noisy positions, H query heads, K key heads, d head size.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig
from ..ops.attention import attend_causal_exact, attend_masked, whole_cells
from .linear import Linear, LowRank
from .norm import RMSNorm
from .rope import rotate
from .rows import Chain, Rows, Segment
from .state import AttentionState

Angles = tuple[Tensor, Tensor]


class AttentionContext(NamedTuple):
    """What previews read of a clean stream: rotated keys and values [B, K, T, d]."""

    keys: Tensor
    values: Tensor


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d)) v with optional per-head q/k norm and biases."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.qkv = Linear(config.hidden_size, config.q_size + 2 * config.kv_size, config.qkv_bias)
        self.out = Linear(config.q_size, config.hidden_size, config.out_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def heads(self, qkv: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Split [..., (H + 2K) d] into q [..., H, d], k, v [..., K, d]; normalise and rotate q and k."""
        c = self.config
        q, k, v = torch.split(qkv, [c.q_size, c.kv_size, c.kv_size], dim=-1)
        q, k, v = (t.unflatten(-1, (-1, c.head_dim)) for t in (q, k, v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q, *angles), rotate(k, *angles), v

    def mix(self, qkv_NC: Tensor, angles: Angles, rows: Rows, layer: int) -> Tensor:
        """Attention of every row of a pass over its own context -> [N, H d]. Writes keys and values as scratch."""
        q, k, v = self.heads(qkv_NC, angles)
        y = torch.zeros_like(q)
        for segment in rows.segments:
            state = segment.state.layers[layer]
            part = slice(segment.start, segment.start + segment.count)
            if rows.prefill:
                state.write(k[part], v[part], segment.state.length)
                y[part] = self._prefill(q[part], state, segment)
                continue
            state.hold(k[part], v[part])
            for chain in segment.chains:
                at = slice(segment.start + chain.start, segment.start + chain.start + chain.count)
                y[at] = self._chain(q[at], k[at], v[at], state, segment, chain)
            if segment.branches:
                first = rows.num_commit + segment.branches[0].start
                last = rows.num_commit + segment.branches[-1].start + segment.branches[-1].count
                previews = slice(first, last)
                y[previews] = self._branches(q[previews], k[previews], v[previews], state, segment)
        return y.flatten(1)

    @staticmethod
    def _prefill(q: Tensor, state: AttentionState, segment: Segment) -> Tensor:
        start = segment.state.length
        end = start + segment.count
        visible = torch.arange(end) <= torch.arange(start, end)[:, None]
        return attend_masked(q, state.keys[:, :end], state.values[:, :end], visible)

    @staticmethod
    def _chain(q: Tensor, k: Tensor, v: Tensor, state: AttentionState, segment: Segment, chain: Chain) -> Tensor:
        """The first chain goes into the cells; others see a copy of them in which their own path stands."""
        length = segment.state.length
        if chain.start == 0:
            state.write(k, v, length)
            return attend_causal_exact(q, state.keys, state.values, length)
        start = length + len(chain.path)
        own = (*chain.path, *range(chain.start, chain.start + chain.count))
        keys, values = state.with_rows(own, length, whole_cells(start + chain.count))
        return attend_causal_exact(q, keys, values, start)

    @staticmethod
    def _branches(q: Tensor, k: Tensor, v: Tensor, state: AttentionState, segment: Segment) -> Tensor:
        """Each branch's rows see the state, its path and all of its own rows, in one call for all branches."""
        assert state.held is not None
        length = segment.state.length
        sizes = torch.tensor([b.count for b in segment.branches])
        owner = torch.arange(len(sizes)).repeat_interleave(sizes)
        paths = torch.zeros(len(sizes), segment.count, dtype=torch.bool)
        for i, branch in enumerate(segment.branches):
            paths[i, list(branch.path)] = True
        committed = torch.ones(len(q), length, dtype=torch.bool)
        visible = torch.cat((committed, paths[owner], owner[:, None] == owner), dim=1)
        keys = torch.cat((state.keys[:, :length], state.held[0].transpose(0, 1), k.transpose(0, 1)), dim=1)
        values = torch.cat((state.values[:, :length], state.held[1].transpose(0, 1), v.transpose(0, 1)), dim=1)
        return attend_masked(q, keys, values, visible)

    def commit(self, x_BTC: Tensor, angles: Angles) -> tuple[Tensor, AttentionContext]:
        """Causal attention over whole sequences from an empty state: outputs [B, T, C] and what previews may read."""
        q, k, v = (t.transpose(1, 2) for t in self.heads(self.qkv(x_BTC), angles))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2)), AttentionContext(k, v)

    def preview(
        self,
        x_BRC: Tensor,
        angles: Angles,
        context: AttentionContext,
        visible: Tensor,
        qkv_delta: LowRank | None = None,
        out_delta: LowRank | None = None,
    ) -> Tensor:
        """Noisy rows [B, R, C] over clean cells and each other. `visible` [B, 1, R, T + R]: additive mask or bool."""
        q, k, v = (t.transpose(1, 2) for t in self.heads(self.qkv(x_BRC, qkv_delta), angles))
        keys, values = torch.cat((context.keys, k), 2), torch.cat((context.values, v), 2)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, enable_gqa=True)
        return cast(Tensor, self.out(y.transpose(1, 2).flatten(2), out_delta))
