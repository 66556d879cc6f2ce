"""Routed experts on packed weights: each is read once, by one thread, for all the rows that it is assigned.

Letters: N rows, D hidden size, E experts, k chosen ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .calls import address, int64, library, threads
from .packed import PackedWeight
from .structs import Product


class PackedExperts:
    """E experts: gate_up [2 F, D] and down [D, F] of each, all in one format."""

    def __init__(self, gate_up: Sequence[PackedWeight], down: Sequence[PackedWeight]) -> None:
        self._kept = (tuple(gate_up), tuple(down))
        self._gate_up, self._down = ((Product * len(side))(*(each.product for each in side)) for side in self._kept)

    def __call__(self, x_ND: Tensor, experts_Nk: Tensor) -> Tensor:
        """Every assignment's down(silu(gate x) * up x) -> [N, k, D]; a row's bits depend on nothing else."""
        x = x_ND.contiguous()
        k = experts_Nk.shape[1]
        flat = experts_Nk.flatten()
        order = flat.argsort(stable=True)
        groups, counts = flat[order].unique_consecutive(return_counts=True)
        starts = counts.new_zeros(len(counts) + 1)
        starts[1:] = counts.cumsum(0)
        out = x.new_empty(len(flat), x.shape[1])
        library().trifolium_experts(
            self._gate_up, self._down, address(x), int64(len(x)), address(groups), address(starts),
            int64(len(groups)), address(order), int64(k), address(out), threads(),
        )  # fmt: skip
        return out.view(-1, k, x.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights."""
        return sum(each.nbytes for side in self._kept for each in side)
