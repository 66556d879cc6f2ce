"""What conversion adds to an AR base: everything here acts on preview rows and drafts, never on commit rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..config import AdapterConfig, ModelConfig
from .feedforward import swiglu
from .linear import LowRank
from .norm import rms_normalise


class LayerDeltas(nn.Module):
    """Low-rank deltas of one attention layer's four products."""

    def __init__(self, config: ModelConfig, rank: int, scale: float) -> None:
        super().__init__()
        d, f = config.hidden_size, config.intermediate_size
        self.qkv = LowRank(d, config.q_size + 2 * config.kv_size, rank, scale)
        self.out = LowRank(config.q_size, d, rank, scale)
        self.gate_up = LowRank(d, 2 * f, rank, scale)
        self.down = LowRank(f, d, rank, scale)


def low_ranks(
    deltas: LayerDeltas | None,
) -> tuple[LowRank | None, LowRank | None, LowRank | None, LowRank | None]:
    """(qkv, out, gate_up, down), all None without deltas."""
    return (None,) * 4 if deltas is None else (deltas.qkv, deltas.out, deltas.gate_up, deltas.down)


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

    def step(self, hidden: Tensor, previous: Tensor, context: Tensor, carry: Tensor) -> Tensor:
        """s_j [..., D] from h_j, e(x_{j-1}), c and s_{j-1}, all [..., D]."""
        normalised = (rms_normalise(x, self.eps) for x in (hidden, previous, context))
        return F.linear(swiglu(F.linear(torch.cat((*normalised, carry), dim=-1), self.up)), self.down)

    def forward(self, hidden: Tensor, previous: Tensor, context: Tensor) -> Tensor:
        """h' for whole blocks: hidden, previous [..., m, D], context [..., D] -> [..., m, D], given the true tokens."""
        carry = torch.zeros_like(context)
        out = []
        for j in range(hidden.shape[-2]):
            carry = self.step(hidden[..., j, :], previous[..., j, :], context, carry)
            out.append(carry)
        return hidden + torch.stack(out, dim=-2)


class Adapter(nn.Module):
    """Mask and position-in-block embeddings, low-rank deltas of every layer, and the chain."""

    def __init__(self, adapter: AdapterConfig, model: ModelConfig) -> None:
        super().__init__()
        self.config = adapter
        scale = adapter.alpha / adapter.rank
        self.mask_embedding = nn.Parameter(torch.zeros(model.hidden_size))
        self.block_position = nn.Parameter(torch.zeros(adapter.max_block, model.hidden_size))
        self.layers = nn.ModuleList(LayerDeltas(model, adapter.rank, scale) for _ in range(model.num_layers))
        self.chain = Chain(model.hidden_size, adapter.chain_size, model.rms_norm_eps) if adapter.chain_size else None

    def reset(self, embedding_VD: Tensor, seed: int) -> None:
        """Fresh weights: deltas and chain change nothing, the mask is the mean token."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.mask_embedding.copy_(embedding_VD.mean(0))
            self.block_position.zero_()
        for module in self.modules():
            if isinstance(module, LowRank | Chain):
                module.reset(generator)

    def embed(self, tokens: Tensor, embedded: Tensor, block_index: Tensor) -> Tensor:
        """Inputs of preview rows: token embeddings [..., D], with the mask's where tokens < 0, plus the block position.

        Rows past `max_block` use the last position's vector.
        """
        x = torch.where(tokens[..., None] < 0, self.mask_embedding, embedded)
        return x + self.block_position[block_index.clamp(max=len(self.block_position) - 1)]
