"""One process of a training run, among others or alone: what it sees of a batch, and sums over all of them.

Nothing here is a cluster of our own: processes are torchrun's, collectives are torch.distributed's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class World:
    """`rank` of `size` processes; alone by default."""

    rank: int = 0
    size: int = 1

    @staticmethod
    def join() -> World:
        """The process group that torchrun has prepared, joined (gloo on CPUs, nccl on GPUs); alone without torchrun."""
        if not dist.is_torchelastic_launched():
            return World()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        return World(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        """Whether this process writes metrics and speaks."""
        return self.rank == 0

    def part(self, x: Tensor) -> Tensor:
        """This process's rows of [B, ...]; the first processes take one more where B doesn't divide."""
        return x.tensor_split(self.size)[self.rank]

    def sum(self, x: Tensor) -> Tensor:
        """The sum of x over all processes, detached."""
        total = x.detach().clone()
        if self.size > 1:
            dist.all_reduce(total)
        return total
