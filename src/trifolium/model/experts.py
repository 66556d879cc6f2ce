"""Mixture of experts as a feed-forward: a router, E small SwiGLU experts of which k see a row, and a shared expert.

Commit rows are routed freely. The preview rows of one request share an expert coreset (ops.experts.coresets): a block
would otherwise read nearly all experts. Shapes: N rows, D hidden size, E experts, k chosen ones, F expert size.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from ..config import ExpertsConfig, ModelConfig
from ..ops.experts import ExpertsKernel, Routing, coresets, experts_kernel, experts_train, route
from ..ops.pointwise import sigmoid_exact
from .adapter import LayerDeltas
from .blocks import Blocks
from .feedforward import FeedForward
from .linear import Linear
from .rows import Rows


class Experts(nn.Module):
    """sum over a row's k experts of weight * expert(x), plus sigmoid(shared_gate(x)) * shared(x)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        sizes = config.experts
        assert sizes is not None
        self.sizes: ExpertsConfig = sizes
        d = config.hidden_size
        self.router = Linear(d, sizes.count, bias=False, precise=True)
        self.gate_up = nn.Parameter(torch.empty(sizes.count, 2 * sizes.size, d), requires_grad=False)
        self.down = nn.Parameter(torch.empty(sizes.count, d, sizes.size), requires_grad=False)
        self.shared = FeedForward(d, sizes.shared_size) if sizes.shared_size else None
        self.shared_gate = Linear(d, 1, bias=False, precise=True) if sizes.shared_size else None
        self.kernel: ExpertsKernel | None = None

    def pack(self, dtype: torch.dtype, *, keep: bool) -> None:
        """Build the kernel of the routed experts; drop their plain weights unless `keep`."""
        gate_up, down = self.gate_up.data, self.down.data
        self.kernel = experts_kernel(gate_up, down, dtype)
        if not keep:
            self.gate_up = nn.Parameter(gate_up.new_empty(0), requires_grad=False)
            self.down = nn.Parameter(down.new_empty(0), requires_grad=False)

    def rows(self, x_ND: Tensor, rows: Rows, deltas: LayerDeltas | None) -> Tensor:
        """All rows of a pass [N, D] -> [N, D]; notes in `rows` how many experts were read."""
        assert self.kernel is not None, "pack() comes before rows()"
        n, tile = rows.num_commit, rows.tile
        logits = self.router.rows(x_ND, n, tile, None)
        routing = self._route(logits, self._allowed(logits, rows, deltas))
        routing.experts[rows.real_commit : n] = routing.experts[:1]  # padding should read nothing of its own
        rows.experts_read.append(routing.distinct())
        y = self.kernel(x_ND, routing, n, not rows.prefill)
        if self.shared is None or self.shared_gate is None:
            return y
        shared = self.shared.rows(x_ND, rows, deltas)
        return y + sigmoid_exact(self.shared_gate.rows(x_ND, n, tile, None)) * shared

    def _route(self, logits: Tensor, allowed: Tensor | None) -> Routing:
        return route(logits, self.sizes.top_k, self.sizes.renormalise, allowed)

    def _allowed(self, logits: Tensor, rows: Rows, deltas: LayerDeltas | None) -> Tensor | None:
        """Which experts each row may use [N, E], where coresets restrict preview rows."""
        if deltas is None or deltas.coreset_top_p == 1.0 or rows.num_commit == len(logits):
            return None
        allowed = torch.ones_like(logits, dtype=torch.bool)
        previews = allowed[rows.num_commit :]
        probabilities = logits[rows.num_commit :].softmax(-1)
        for segment in rows.segments:
            if segment.branches:
                part = segment.previews
                previews[part] = coresets(probabilities[part], deltas.coreset_top_p, self.sizes.top_k)
        return allowed

    def forward(
        self,
        x: Tensor,
        deltas: LayerDeltas | None = None,
        blocks: Blocks | None = None,
        routers: list[Tensor] | None = None,
    ) -> Tensor:
        """Whole sequences [B, T, D] -> [B, T, D], differentiable. `blocks`: x are noisy rows, with a coreset a block.

        `routers` collects the router's probabilities [B, T, E], for a loss that balances the experts.
        """
        logits = self.router(x).float()
        if routers is not None:
            routers.append(logits.softmax(-1))
        allowed = None
        if blocks is not None and deltas is not None and deltas.coreset_top_p < 1.0:
            sets = coresets(blocks.split(logits.softmax(-1)), deltas.coreset_top_p, self.sizes.top_k)
            allowed = sets.repeat_interleave(blocks.block_size, 1).flatten(0, 1)
        routing = self._route(logits.flatten(0, 1), allowed)
        y = experts_train(x.flatten(0, 1), routing, self.gate_up, self.down).view_as(x)
        if self.shared is None or self.shared_gate is None:
            return y
        shared: Tensor = self.shared(x, deltas)
        return y + cast(Tensor, self.shared_gate(x)).sigmoid() * shared
