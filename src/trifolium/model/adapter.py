"""What conversion adds to an AR base: everything here acts on preview rows and drafts, never on commit rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import AdapterConfig, DeltaNetConfig, ModelConfig
from ..ops.pointwise import swiglu
from ..ops.preview import initial_preview
from .linear import LowRank
from .norm import rms_normalise


class PreviewParameters(nn.Module):
    """What a delta-net layer needs to preview (ops.preview): right taps [C, W - 1], and three numbers a value head."""

    def __init__(self, sizes: DeltaNetConfig) -> None:
        super().__init__()
        fresh = initial_preview(sizes.value_heads, sizes.conv_size, sizes.conv_width)
        self.right = nn.Parameter(fresh["right"])
        self.logit_scale = nn.Parameter(fresh["logit_scale"])
        self.history_bias = nn.Parameter(fresh["history_bias"])
        self.history_c = nn.Parameter(fresh["history_c"])


class LayerDeltas(nn.Module):
    """What one layer's preview rows add: low-rank deltas of its four products, and a delta-net's own parameters.

    `qkv` acts on the mixer's input product, whatever the mixer; `gate_up` and `down` on the dense feed-forward or on
    the shared expert. Without a rank there are none. `causal`: see AdapterConfig.delta_preview.
    """

    def __init__(self, adapter: AdapterConfig, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.causal = adapter.delta_preview == "causal"
        self.coreset_top_p = adapter.coreset_top_p
        self.preview: PreviewParameters | None = None
        d = config.hidden_size
        if config.mixers[layer] == "delta_net":
            assert config.delta_net is not None
            sizes = config.delta_net
            mixed, projected = sizes.value_size, sizes.conv_size + sizes.value_size + 2 * sizes.value_heads
            self.preview = PreviewParameters(sizes)
        else:
            mixed = config.q_size
            projected = config.q_size * (2 if config.output_gate else 1) + 2 * config.kv_size
        f = config.intermediate_size
        if config.feed_forwards[layer] == "experts":
            assert config.experts is not None
            f = config.experts.shared_size

        def low_rank(inputs: int, outputs: int) -> LowRank | None:
            scale = adapter.alpha / max(adapter.rank, 1)
            return LowRank(inputs, outputs, adapter.rank, scale) if adapter.rank and inputs and outputs else None

        self.qkv = low_rank(d, projected)
        self.out = low_rank(mixed, d)
        self.gate_up = low_rank(d, 2 * f)
        self.down = low_rank(f, d)


class ChainProducts(NamedTuple):
    """The chain's two weights, packed."""

    up: Callable[[Tensor], Tensor]
    down: Callable[[Tensor], Tensor]


class Chain(nn.Module):
    """Ties the parallel proposals of a block together: refines row j's output by the tokens chosen before it.

    A preview row predicts its token without knowing the ones in between. The chain walks the block's outputs once,
    from left to right, at the cost of a small feed-forward per row and no pass:

        s_j = W_down swiglu(W_up [rms(h_j); rms(e(x_{j-1})); rms(c); s_{j-1}]),   h'_j = h_j + s_j,   s_{-1} = 0

    with h_j the row's final hidden vector, e(x) the embedding of the token before the one it predicts, and c the final
    hidden vector of the commit row that the block's context ends with. It starts as the identity (W_down = 0).
    """

    def __init__(self, hidden_size: int, size: int, eps: float) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(2 * size, 4 * hidden_size))
        self.down = nn.Parameter(torch.zeros(hidden_size, size))
        self.eps = eps

    def reset(self, generator: torch.Generator) -> None:
        """Random W_up, zero W_down."""
        nn.init.normal_(self.up, std=self.up.shape[1] ** -0.5, generator=generator)
        nn.init.zeros_(self.down)

    def step(
        self, hidden: Tensor, previous: Tensor, context: Tensor, carry: Tensor, products: ChainProducts | None = None
    ) -> Tensor:
        """s_j [..., D] from h_j, e(x_{j-1}), c and s_{j-1}, all [..., D]; `products` stand in for the plain weights."""
        normalised = (rms_normalise(x, self.eps) for x in (hidden, previous, context))
        x = torch.cat((*normalised, carry), dim=-1)
        if products is not None:
            return products.down(swiglu(products.up(x)))
        return F.linear(swiglu(F.linear(x, self.up)), self.down)

    def forward(self, hidden: Tensor, previous: Tensor, context: Tensor) -> Tensor:
        """h' for whole blocks: hidden, previous [..., m, D], context [..., D] -> [..., m, D], given the true tokens."""
        carry = torch.zeros_like(context)
        out = []
        for j in range(hidden.shape[-2]):
            carry = self.step(hidden[..., j, :], previous[..., j, :], context, carry)
            out.append(carry)
        return hidden + torch.stack(out, dim=-2)


class Adapter(nn.Module):
    """Mask and position-in-block embeddings, every layer's deltas, and the chain; each of them may be left out."""

    def __init__(self, adapter: AdapterConfig, model: ModelConfig) -> None:
        super().__init__()
        self.config = adapter
        d = model.hidden_size
        self.mask_embedding = nn.Parameter(torch.zeros(d)) if adapter.mask_token is None else None
        self.block_position = nn.Parameter(torch.zeros(adapter.max_block, d)) if adapter.max_block else None
        self.layers = nn.ModuleList(LayerDeltas(adapter, model, layer) for layer in range(model.num_layers))
        self.chain = Chain(model.hidden_size, adapter.chain_size, model.rms_norm_eps) if adapter.chain_size else None

    def reset(self, embedding_VD: Tensor, seed: int) -> None:
        """Fresh weights: deltas and chain change nothing, the mask is the mean token."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            if self.mask_embedding is not None:
                self.mask_embedding.copy_(embedding_VD.mean(0))
            if self.block_position is not None:
                self.block_position.zero_()
        for module in self.modules():
            if isinstance(module, LowRank | Chain):
                module.reset(generator)

    def embed(self, tokens: Tensor, block_index: Tensor, embedding: nn.Embedding) -> Tensor:
        """Inputs of preview rows [..., D]: embeddings of tokens, the mask's where tokens < 0, plus the block position.

        Rows past `max_block` use the last position's vector.
        """
        masked = tokens < 0
        x: Tensor = embedding(tokens.masked_fill(masked, self.config.mask_token or 0))
        if self.mask_embedding is not None:
            x = torch.where(masked[..., None], self.mask_embedding, x)
        if self.block_position is not None:
            x = x + self.block_position[block_index.clamp(max=len(self.block_position) - 1)]
        return x

    @staticmethod
    def native(model: ModelConfig, name: str) -> Adapter:
        """The adapter of a checkpoint that previews by itself: its preview parameters, its mask token, no deltas."""
        assert model.preview is not None
        config = AdapterConfig(
            base_name=name,
            base_fingerprint="",
            rank=0,
            max_block=0,
            chain_size=0,
            mask_token=model.preview.mask_token,
            prediction_offset=model.preview.prediction_offset,
            block_size=model.preview.block_size,
            coreset_top_p=model.preview.coreset_top_p,
            vocab_size=model.vocab_size,
            hidden_size=model.hidden_size,
            num_layers=model.num_layers,
        )
        return Adapter(config, model)
