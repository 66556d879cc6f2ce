"""The model: embedding, layers of mixer and feed-forward, norm, head.

`rows` runs one pass of the engine over commit and preview rows of any number of requests. `commit_stream` and
`preview_stream` run whole sequences, the clean and the noisy side of training, on the same modules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import ModelConfig
from .adapter import Adapter, LayerDeltas
from .attention import Angles, Attention, AttentionContext
from .feedforward import FeedForward
from .linear import Linear, LowRank
from .norm import RMSNorm
from .rope import Rope
from .rows import ROW_TILE, Rows
from .state import RequestState


class LayerParts(NamedTuple):
    """The deltas of a layer's four products, or four times None."""

    qkv: LowRank | None = None
    out: LowRank | None = None
    gate_up: LowRank | None = None
    down: LowRank | None = None


def parts(deltas: LayerDeltas | None) -> LayerParts:
    """Each delta on its own; none of them without an adapter."""
    return LayerParts() if deltas is None else LayerParts(deltas.qkv, deltas.out, deltas.gate_up, deltas.down)


class DecoderLayer(nn.Module):
    """x + mixer(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mixer_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mixer = Attention(config)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn = FeedForward(config)

    def rows(self, x: Tensor, angles: Angles, rows: Rows, layer: int, deltas: LayerDeltas | None) -> Tensor:
        """All rows of a pass [N, D] -> [N, D]."""
        n, tile = rows.num_commit, None if rows.prefill else ROW_TILE
        d = parts(deltas)
        qkv = self.mixer.qkv.rows(self.mixer_norm(x), n, tile, d.qkv)
        y = self.mixer.mix(qkv, angles, rows, layer)
        x = x + self.mixer.out.rows(y, n, tile, d.out)
        return x + self.ffn.rows(self.ffn_norm(x), n, tile, d.gate_up, d.down)

    def commit(self, x: Tensor, angles: Angles) -> tuple[Tensor, AttentionContext]:
        """Clean sequences [B, T, D] -> [B, T, D], and the context that previews read."""
        y, context = self.mixer.commit(self.mixer_norm(x), angles)
        x = x + y
        return x + self.ffn(self.ffn_norm(x)), context

    def preview(
        self, x: Tensor, angles: Angles, context: AttentionContext, visible: Tensor, deltas: LayerDeltas | None
    ) -> Tensor:
        """Noisy rows [B, R, D] -> [B, R, D]."""
        d = parts(deltas)
        x = x + self.mixer.preview(self.mixer_norm(x), angles, context, visible, d.qkv, d.out)
        return cast(Tensor, x + self.ffn(self.ffn_norm(x), d.gate_up, d.down))


class Transformer(nn.Module):
    """A decoder-only language model that runs commit and preview rows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed.weight.requires_grad_(False)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = cast(nn.Parameter, self.embed.weight)
        self.rope = Rope(config.rope, config.head_dim, config.max_positions)
        self.adapter: Adapter | None = None

    def decoder_layers(self) -> Iterable[tuple[int, DecoderLayer, LayerDeltas | None]]:
        """(index, layer, its deltas if an adapter is attached), in order."""
        for i, layer in enumerate(self.layers):
            deltas = None if self.adapter is None else cast(LayerDeltas, self.adapter.layers[i])
            yield i, cast(DecoderLayer, layer), deltas

    def pack(self, dtype: torch.dtype, *, keep: bool = False) -> None:
        """Prepare every product for the engine in `dtype`; `keep` leaves the plain weights in place for training."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack(dtype, keep=keep)

    @property
    def exact(self) -> bool:
        """Whether commit rows get the same bits in every pass (int8 and float32 do, bfloat16 does not)."""
        return self.head.kernel is not None and self.head.kernel.exact

    def new_state(self) -> RequestState:
        """An empty state for one request."""
        return RequestState(self.config, self.embed.weight.device)

    def rows(self, rows: Rows) -> Tensor:
        """One pass: final hidden vectors [N, D], normalised. Writes every commit row's update as scratch."""
        n = rows.num_commit
        x = self.embed(rows.tokens.clamp(min=0))
        if n < len(x):
            assert self.adapter is not None, "preview rows need an adapter"
            previews = self.adapter.embed(rows.tokens[n:], x[n:], rows.block_index)
            x = torch.cat((x[:n], previews))
        angles = self.rope(rows.positions, rows.limit)
        for i, layer, deltas in self.decoder_layers():
            x = layer.rows(x, angles, rows, i, deltas)
        return cast(Tensor, self.norm(x))

    def logits(self, hidden_ND: Tensor, *, exact: bool = True) -> Tensor:
        """Hidden vectors [N, D] -> float32 logits [N, V]. `exact`: each row's bits don't depend on N (commit rows)."""
        if not exact:
            return self.head.rows(hidden_ND, 0, None, None)
        n = len(hidden_ND)
        padded = F.pad(hidden_ND, (0, 0, 0, -n % ROW_TILE)) if self.tiled else hidden_ND
        return self.head.rows(padded, len(padded), ROW_TILE, None)[:n]

    @property
    def tiled(self) -> bool:
        """Whether exact products need commit rows in whole tiles (`Rows.build(tile=...)`)."""
        return self.head.kernel is not None and self.head.kernel.tiled

    def commit_stream(self, tokens_BT: Tensor) -> tuple[Tensor, list[AttentionContext]]:
        """Clean sequences from position 0: final hidden vectors [B, T, D] and every layer's context for previews."""
        length = tokens_BT.shape[1]
        angles = self.rope(torch.arange(length), length)
        x = self.embed(tokens_BT)
        contexts = []
        for _, layer, _ in self.decoder_layers():
            x, context = layer.commit(x, angles)
            contexts.append(context)
        return cast(Tensor, self.norm(x)), contexts

    def preview_stream(
        self,
        tokens_BR: Tensor,
        positions_BR: Tensor,
        block_index_BR: Tensor,
        contexts: list[AttentionContext],
        visible: Tensor,
    ) -> Tensor:
        """Noisy rows over clean contexts: final hidden vectors [B, R, D]. `visible` [B, 1, R, T + R] as Attention's."""
        assert self.adapter is not None, "preview rows need an adapter"
        x = self.adapter.embed(tokens_BR, self.embed(tokens_BR.clamp(min=0)), block_index_BR)
        angles = self.rope(positions_BR, self.config.max_positions)
        for i, layer, deltas in self.decoder_layers():
            x = layer.preview(x, angles, contexts[i], visible, deltas)
        return cast(Tensor, self.norm(x))
