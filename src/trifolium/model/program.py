"""A dense transformer's layers as one native call for each pass, where the kernels are there.

DecoderLayer.rows is what it computes, row by row the same as far as rounding goes; ops/native/dense.h says how.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..ops.formats import QUANTISED
from ..ops.linear import PackedLinear, pack_weight
from ..ops.native.dense import DenseLayer, DenseSizes, DenseTransformer, LowRankWeights
from ..ops.native.packed import PackedWeight
from .adapter import LayerDeltas
from .attention import Angles, Attention
from .feedforward import FeedForward
from .linear import Linear, LowRank
from .norm import RMSNorm
from .rows import Rows

if TYPE_CHECKING:
    from .transformer import DecoderLayer, Transformer


class Program:
    """A packed model's layers, with the adapter's deltas on preview rows. The weights are those of its making."""

    def __init__(self, model: Transformer, dtype: torch.dtype) -> None:
        config = model.config
        rotary = config.rope.rotary_dim or config.head_dim
        sizes = DenseSizes(
            hidden=config.hidden_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rotary=rotary,
            ffn=config.intermediate_size,
            eps=config.rms_norm_eps,
        )
        layers = [_layer(layer, deltas, dtype) for _, layer, deltas in model.decoder_layers()]
        self._dense = DenseTransformer(sizes, layers, _factors(model.norm))

    @staticmethod
    def of(model: Transformer) -> Program | None:
        """The program of a packed model, or None: for hybrids, mixtures, gated attention, or without kernels."""
        config = model.config
        dense = set(config.mixers) == {"attention"} and set(config.feed_forwards) == {"dense"}
        if not dense or config.output_gate or model.embed.weight.device.type != "cpu":
            return None
        kernels = [module.kernel for module in model.modules() if isinstance(module, Linear)]
        if not all(isinstance(kernel, PackedLinear) for kernel in kernels):
            return None
        quantised = any(isinstance(k, PackedLinear) and k.packed.dtype in QUANTISED for k in kernels)
        return Program(model, torch.int8 if quantised else torch.float32)

    def run(self, x_ND: Tensor, angles: Angles, rows: Rows) -> Tensor:
        """Inputs [N, D] of a pass's rows -> final hidden vectors [N, D], normalised; scratch goes to the states."""
        n = rows.num_commit
        request, tails = [0] * len(x_ND), [[i] for i in range(len(x_ND))]
        longest = 1
        for number, segment in enumerate(rows.segments):
            for i, path in enumerate(segment.paths):
                tails[segment.start + i] = [segment.start + row for row in path]
                request[segment.start + i] = number
            for branch in segment.branches:
                first = n + branch.start
                block = [*(segment.start + row for row in branch.path), *range(first, first + branch.count)]
                for row in range(first, first + branch.count):
                    tails[row] = block
                    request[row] = number
        for number, row_tail in zip(request, tails, strict=True):
            longest = max(longest, rows.segments[number].state.length + len(row_tail))
        starts = torch.tensor([0, *map(len, tails)]).cumsum(0)
        x = x_ND.contiguous()
        scratch = self._dense.run(
            x,
            n,
            angles,
            torch.tensor(request),
            starts,
            torch.tensor(list(chain.from_iterable(tails)), dtype=torch.int32),
            [(segment.state.attention.data, segment.state.length) for segment in rows.segments],
            longest,
        )
        for segment in rows.segments:
            segment.state.attention.scratch = scratch[:, :, segment.start : segment.start + segment.count]
        return x


def _layer(layer: DecoderLayer, deltas: LayerDeltas | None, dtype: torch.dtype) -> DenseLayer:
    mixer, ffn = layer.mixer, layer.ffn
    assert isinstance(mixer, Attention) and isinstance(ffn, FeedForward)
    low_ranks = (None,) * 4 if deltas is None else (deltas.qkv, deltas.out, deltas.gate_up, deltas.down)
    return DenseLayer(
        mixer_norm=_factors(layer.mixer_norm),
        q_norm=None if mixer.q_norm is None else _factors(mixer.q_norm),
        k_norm=None if mixer.k_norm is None else _factors(mixer.k_norm),
        ffn_norm=_factors(layer.ffn_norm),
        products=[_packed(linear) for linear in (mixer.qkv, mixer.out, ffn.gate_up, ffn.down)],
        deltas=[None if low_rank is None else _low_rank(low_rank, dtype) for low_rank in low_ranks],
    )


def _factors(norm: RMSNorm) -> Tensor:
    return (norm.weight.data + norm.offset).float().contiguous()


def _packed(linear: Linear) -> PackedWeight:
    assert isinstance(linear.kernel, PackedLinear)
    return linear.kernel.packed


def _low_rank(low_rank: LowRank, dtype: torch.dtype) -> LowRankWeights:
    down, up = (pack_weight(weight.data, None, dtype) for weight in (low_rank.down, low_rank.up))
    return LowRankWeights(down, up, low_rank.scale)
