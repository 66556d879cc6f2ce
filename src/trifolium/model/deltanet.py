"""Gated DeltaNet as a mixer (Yang et al. 2024, arXiv:2412.06464), with the block-diffusion preview.

Commit rows run the gated delta rule; a block's rows read the state at its start as one more slot of their softmax
(ops.preview). Shapes: N rows of a pass, B sequences, T clean positions, R noisy rows in blocks of m, H value heads,
d key head size, e value head size, C channels of the convolution (q | k | v), W its width.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import DeltaNetConfig, ModelConfig
from ..ops import conv
from ..ops.delta_rule import Trace, advance, chunked, state_at
from ..ops.pointwise import sigmoid_exact, silu_exact, softplus_exact, unit
from ..ops.preview import PreviewParams, preview
from ..ops.registry import choose
from .adapter import LayerDeltas, PreviewParameters
from .blocks import Blocks
from .linear import Linear
from .norm import RMSNorm
from .rows import Rows, Segment
from .state import DeltaNetState, DeltaUpdates


class DeltaNetContext(NamedTuple):
    """What previews read of a clean stream: the recurrence's trace, and the convolution's inputs [B, T, C]."""

    trace: Trace
    inputs: Tensor


class Projected(NamedTuple):
    """One row's product: conv inputs [..., C], output gate z [..., H e], raw write strength b and decay a [..., H]."""

    inputs: Tensor
    z: Tensor
    b: Tensor
    a: Tensor


class _Start(NamedTuple):
    """A branch of a pass: its `size` preview rows from `first` on, and the state and ring that they start from."""

    first: int
    size: int
    state: Tensor
    ring: Tensor


class DeltaNet(nn.Module):
    """Gated delta rule over convolved q, k, v; RMSNorm(o) * SiLU(z); output product."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        sizes = config.delta_net
        assert sizes is not None
        self.sizes: DeltaNetConfig = sizes
        heads = sizes.value_heads
        self.proj = Linear(config.hidden_size, sizes.conv_size + sizes.value_size + 2 * heads, bias=False)
        self.conv = nn.Parameter(torch.empty(sizes.conv_size, sizes.conv_width), requires_grad=False)
        self.decay_log = nn.Parameter(torch.empty(heads), requires_grad=False)
        self.decay_bias = nn.Parameter(torch.empty(heads), requires_grad=False)
        self.gate_norm = RMSNorm(sizes.value_dim, config.rms_norm_eps)
        self.out = Linear(sizes.value_size, config.hidden_size, bias=False)

    def split(self, projected: Tensor) -> Projected:
        """[..., C + H e + 2 H] -> its parts."""
        s = self.sizes
        return Projected(*projected.split([s.conv_size, s.value_size, s.value_heads, s.value_heads], dim=-1))

    def heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """c [..., C] -> q, k [..., H, d], of unit length, and v [..., H, e]; key heads repeated to value heads."""
        s = self.sizes
        q, k, v = convolved.split([s.key_size, s.key_size, s.value_size], dim=-1)
        q, k = (unit(t.unflatten(-1, (s.key_heads, s.key_dim))) for t in (q, k))
        repeat = s.value_heads // s.key_heads
        return q.repeat_interleave(repeat, -2), k.repeat_interleave(repeat, -2), v.unflatten(-1, (-1, s.value_dim))

    def preview_params(self, parameters: PreviewParameters) -> PreviewParams:
        """The preview operator's weights: the commit's own taps, and what conversion adds."""
        p = parameters
        return PreviewParams(
            self.conv, p.right, p.logit_scale, p.history_bias, p.history_c, self.sizes.key_heads, self.sizes.key_dim
        )

    # One pass of the engine.

    def rows(self, x_ND: Tensor, rows: Rows, layer: int, deltas: LayerDeltas | None) -> Tensor:
        """Mix every row of a pass [N, D] -> [N, D]. Commit rows leave their updates in each request's state."""
        n, tile = rows.num_commit, rows.tile
        parts = self.split(self.proj.rows(x_ND, n, tile, deltas.qkv if deltas else None))
        log_decay = -self.decay_log.exp() * softplus_exact(parts.a[:n] + self.decay_bias)
        decay, beta = log_decay.exp(), sigmoid_exact(parts.b[:n])
        y = x_ND.new_zeros(len(x_ND), self.sizes.value_heads, self.sizes.value_dim)
        starts: list[_Start] = []
        for segment in rows.segments:
            state = cast(DeltaNetState, segment.state.layers[layer])
            part = slice(segment.start, segment.start + segment.count)
            if rows.prefill:
                y[part] = self._prefill(parts.inputs[part], log_decay[part], beta[part], state)
                continue
            out, ends = self._tree(parts.inputs[part], decay[part], beta[part], state, segment)
            y[part] = out
            for branch in segment.branches:
                ring = conv.ring_after(parts.inputs[part], state.ring, branch.path)
                end = ends[branch.path[-1]] if branch.path else state.state
                starts.append(_Start(branch.start, branch.count, end, ring))
        for m in sorted({start.size for start in starts}):  # one call for each block size
            group = [start for start in starts if start.size == m]
            index = n + torch.tensor([start.first for start in group])[:, None] + torch.arange(m)
            states, rings = torch.stack([s.state for s in group]), torch.stack([s.ring for s in group])
            y[index] = self._preview(parts.inputs[index], parts.a[index], parts.b[index], states, rings, deltas)
        gated = self.gate_norm(y) * silu_exact(parts.z.contiguous()).view_as(y)
        return self.out.rows(gated.flatten(1), n, tile, deltas.out if deltas else None)

    def _prefill(self, inputs: Tensor, log_decay: Tensor, beta: Tensor, state: DeltaNetState) -> Tensor:
        q, k, v = self.heads(conv.causal(inputs[None], self.conv, state.ring[None]))
        rule = choose("delta_rule.chunked", inputs.device).function
        out, after = rule(q, k, v, log_decay[None], beta[None], state.state[None])
        ring = torch.cat((state.ring, inputs))[-(self.sizes.conv_width - 1) :].clone()
        state.held, state.pending = None, (after[0], ring)
        return cast(Tensor, out[0])

    def _tree(
        self, inputs: Tensor, decay: Tensor, beta: Tensor, state: DeltaNetState, segment: Segment
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """One request's commit rows: outputs [n, H, e], and the states that branches and later chains start from."""
        q, k, v = self.heads(conv.rows(inputs, self.conv, state.ring, segment.taps(self.sizes.conv_width)))
        wanted = {branch.path[-1] for branch in segment.branches if branch.path}
        wanted |= {chain.path[-1] for chain in segment.chains if chain.path}
        outs, updates, ends = [v[:0]], [v[:0]], dict[int, Tensor]()
        for chain in segment.chains:
            part = slice(chain.start, chain.start + chain.count)
            before = ends[chain.path[-1]] if chain.path else state.state
            keep = [row - chain.start for row in wanted if part.start <= row < part.stop]
            done = advance(q[part], k[part], v[part], decay[part], beta[part], before, keep)
            outs.append(done.out)
            updates.append(done.updates)
            ends |= {row + chain.start: kept for row, kept in done.kept.items()}
        state.hold(DeltaUpdates(inputs.clone(), decay, k, torch.cat(updates)))
        return torch.cat(outs), ends

    # Whole sequences.

    def commit(self, x_BTD: Tensor) -> tuple[Tensor, DeltaNetContext]:
        """The recurrence over whole sequences from an empty state: outputs [B, T, D] and what previews may read."""
        parts = self.split(self.proj(x_BTD))
        q, k, v = self.heads(conv.causal(parts.inputs, self.conv))
        result = chunked(q, k, v, self._log_decay(parts.a), parts.b.float().sigmoid())
        return self._output(result.out, parts.z), DeltaNetContext(result.trace, parts.inputs)

    def preview(self, x_BRD: Tensor, context: DeltaNetContext, blocks: Blocks, deltas: LayerDeltas) -> Tensor:
        """Noisy rows [B, R, D] over the state and ring at each block's start, and over their own block."""
        parts = self.split(self.proj(x_BRD, deltas.qkv))
        states = state_at(context.trace, blocks.starts)
        offsets = torch.arange(2 - self.sizes.conv_width, 1)
        at = blocks.starts[:, :, None] + offsets
        batch = torch.arange(len(at))[:, None, None]
        rings = torch.where((at >= 0)[..., None], context.inputs[batch, at.clamp(min=0)], 0.0)
        inputs, a, b = (blocks.split(t) for t in (parts.inputs, parts.a, parts.b))
        y = self._preview(inputs, a, b, states, rings, deltas)
        return self._output(y.flatten(1, 2), parts.z, deltas)

    def _preview(
        self, inputs: Tensor, a: Tensor, b: Tensor, states: Tensor, rings: Tensor, deltas: LayerDeltas | None
    ) -> Tensor:
        """Blocks of conv inputs [..., m, C] over states [..., H, d, e] and rings [..., W - 1, C] -> [..., m, H, e]."""
        assert deltas is not None
        assert deltas.preview is not None
        if not deltas.causal:
            return preview(inputs, states, rings, self.preview_params(deltas.preview))
        lead = inputs.shape[:-2]
        inputs, a, b, states, rings = (t.reshape(-1, *t.shape[len(lead) :]) for t in (inputs, a, b, states, rings))
        q, k, v = self.heads(conv.causal(inputs, self.conv, rings))
        out = chunked(q, k, v, self._log_decay(a), b.float().sigmoid(), states, chunk=inputs.shape[1]).out
        return out.view(*lead, *out.shape[1:])

    def _log_decay(self, a: Tensor) -> Tensor:
        """g = -exp(decay_log) * softplus(a + decay_bias), in float32."""
        return -self.decay_log.float().exp() * F.softplus(a.float() + self.decay_bias)

    def _output(self, y: Tensor, z: Tensor, deltas: LayerDeltas | None = None) -> Tensor:
        """RMSNorm(y) * SiLU(z), then the output product: y [..., H, e], z [..., H e] -> [..., D]."""
        gated = self.gate_norm(y) * F.silu(z.float()).view_as(y)
        return cast(Tensor, self.out(gated.flatten(-2), deltas.out if deltas else None))
