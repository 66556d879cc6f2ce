"""Grouped-query attention with rotary positions, as a mixer: project, mix; commit and preview are its definition.

Shapes: N rows of a pass, B sequences, T clean positions, R noisy rows, H query heads, K key heads, d head size.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig
from ..ops.attention import attend_causal_exact, attend_masked, whole_cells
from ..ops.pointwise import sigmoid_exact
from .adapter import LayerDeltas
from .blocks import Blocks
from .linear import Linear
from .norm import RMSNorm
from .rope import rotate
from .rows import Chain, Rows, Segment
from .state import AttentionState

Angles = tuple[Tensor, Tensor]


class AttentionContext(NamedTuple):
    """What previews read of a clean stream: rotated keys and values [B, K, T, d]."""

    keys: Tensor
    values: Tensor


class Heads(NamedTuple):
    """q [..., H, d], k, v [..., K, d], q and k normalised and rotated; the raw output gate [..., H, d], if any."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor | None


class Attention(nn.Module):
    """softmax(q k^T / sqrt(d)) v with optional per-head q/k norm, biases, and sigmoid output gate.

    The input product gives q | k | v; with an output gate each query head's rows are followed by its gate's.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.q_width = config.q_size * (2 if config.output_gate else 1)
        self.qkv = Linear(config.hidden_size, self.q_width + 2 * config.kv_size, config.qkv_bias)
        self.out = Linear(config.q_size, config.hidden_size, config.out_bias)
        norm = (config.head_dim, config.rms_norm_eps, config.norm_offset)
        self.q_norm = RMSNorm(*norm) if config.qk_norm else None
        self.k_norm = RMSNorm(*norm) if config.qk_norm else None

    def heads(self, qkv: Tensor, angles: Angles) -> Heads:
        """Split the input product [..., q_width + 2 K d]; normalise and rotate q and k."""
        c = self.config
        q, k, v = torch.split(qkv, [self.q_width, c.kv_size, c.kv_size], dim=-1)
        q, k, v = (
            t.unflatten(-1, (heads, -1)) for t, heads in ((q, c.num_heads), (k, c.num_kv_heads), (v, c.num_kv_heads))
        )
        gate = None
        if c.output_gate:
            q, gate = q.chunk(2, dim=-1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return Heads(rotate(q, *angles), rotate(k, *angles), v, gate)

    def rows(self, x_ND: Tensor, angles: Angles, rows: Rows, layer: int, deltas: LayerDeltas | None) -> Tensor:
        """Mix every row of a pass [N, D] -> [N, D]."""
        n, tile = rows.num_commit, rows.tile
        heads = self.heads(self.qkv.rows(x_ND, n, tile, deltas.qkv if deltas else None), angles)
        y = self.mix(heads, rows, layer)
        if heads.gate is not None:
            y = y * sigmoid_exact(heads.gate)
        return self.out.rows(y.flatten(1), n, tile, deltas.out if deltas else None)

    def mix(self, heads: Heads, rows: Rows, layer: int) -> Tensor:
        """Attention of every row of a pass over its own context -> [N, H, d]. Writes keys and values as scratch."""
        q, k, v, _ = heads
        y = torch.zeros_like(q)
        for segment in rows.segments:
            state = cast(AttentionState, segment.state.layers[layer])
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
                previews = slice(rows.num_commit + segment.previews.start, rows.num_commit + segment.previews.stop)
                y[previews] = self._branches(q[previews], k[previews], v[previews], state, segment)
        return y

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

    def commit(self, x_BTD: Tensor, angles: Angles) -> tuple[Tensor, AttentionContext]:
        """Causal attention over whole sequences from an empty state: outputs [B, T, D] and what previews may read."""
        heads = self.heads(self.qkv(x_BTD), angles)
        q, k, v = (t.transpose(1, 2) for t in heads[:3])
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self._output(y, heads.gate), AttentionContext(k, v)

    def preview(
        self, x_BRD: Tensor, angles: Angles, context: AttentionContext, blocks: Blocks, deltas: LayerDeltas
    ) -> Tensor:
        """Noisy rows [B, R, D] over the clean cells and the rows that each one sees."""
        heads = self.heads(self.qkv(x_BRD, deltas.qkv), angles)
        q, k, v = (t.transpose(1, 2) for t in heads[:3])
        keys, values = torch.cat((context.keys, k), 2), torch.cat((context.values, v), 2)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=blocks.visible, enable_gqa=True)
        return self._output(y, heads.gate, deltas)

    def _output(self, y_BHTd: Tensor, gate: Tensor | None, deltas: LayerDeltas | None = None) -> Tensor:
        y = y_BHTd.transpose(1, 2)
        if gate is not None:
            y = y * gate.sigmoid()
        return cast(Tensor, self.out(y.flatten(2), deltas.out if deltas else None))
