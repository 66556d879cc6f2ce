"""Low-rank deltas on the commit path of a frozen base: what skills are while they are trained.

The base's weights stay as they are, and need no gradients; a merged weight would need both. Letters: r rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..checkpoint.skills_file import Pair
from ..errors import ConfigError, TensorMismatchError
from ..model import Transformer
from ..model.linear import Linear, LowRank


class Deltas(nn.Module):
    """A low-rank delta for each product of the model's layers whose name ends with one of `ends`, or for all of them.

    Fresh ones change nothing. `attach` lets them act on every call of the model's streams.
    """

    def __init__(self, model: Transformer, rank: int, alpha: float, ends: Sequence[str] = (), *, seed: int = 0) -> None:
        super().__init__()
        self.rank, self.alpha = rank, alpha
        products = {
            f"layers.{name}": module
            for name, module in model.layers.named_modules()
            if isinstance(module, Linear) and not module.precise
        }
        if unused := [end for end in ends if not any(name.endswith(end) for name in products)]:
            example = next(iter(products))
            raise ConfigError(f"weights name no product: {', '.join(unused)} (ends of names like {example})")
        self.names = tuple(name for name in products if name.endswith(tuple(ends) or ("",)))
        shapes = [products[name].weight.shape for name in self.names]
        self.low_ranks = nn.ModuleList(LowRank(inputs, outputs, rank, alpha / rank) for outputs, inputs in shapes)
        self.active = True
        generator = torch.Generator().manual_seed(seed)
        for _, low_rank in self.items():
            low_rank.reset(generator)

    def items(self) -> Iterator[tuple[str, LowRank]]:
        """(name of the product, its delta), in the model's order."""
        for name, low_rank in zip(self.names, self.low_ranks, strict=True):
            yield name, cast(LowRank, low_rank)

    def attach(self, model: Transformer) -> None:
        """Add every delta to its product's output, from now on and before the model's layers are compiled."""
        for name, low_rank in self.items():
            model.get_submodule(name).register_forward_hook(self._adding(low_rank))

    def _adding(self, low_rank: nn.Module) -> Any:
        def add(module: nn.Module, given: tuple[Tensor, ...], y: Tensor) -> Tensor:
            return y + low_rank(given[0]) if self.active else y

        return add

    @contextmanager
    def off(self) -> Iterator[None]:
        """The plain base, for a while."""
        self.active = False
        try:
            yield
        finally:
            self.active = True

    def pairs(self) -> dict[str, Pair]:
        """The deltas by the names of the weights that they change, as a skills file holds them."""
        return {f"{name}.weight": Pair(delta.down.detach(), delta.up.detach()) for name, delta in self.items()}

    @torch.no_grad()
    def take(self, pairs: dict[str, Pair], scale: float) -> None:
        """Go on from the deltas of a skills file, whose products are multiplied by `scale`.

        Raises TensorMismatchError where they are not of these weights and this rank.
        """
        own = self.pairs()
        wanted = {name: [x.shape for x in pair] for name, pair in own.items()}
        if (given := {name: [x.shape for x in pair] for name, pair in pairs.items()}) != wanted:
            wrong = sorted(name for name in given.keys() | wanted.keys() if given.get(name) != wanted.get(name))
            raise TensorMismatchError(f"the skills to start from have other weights or another rank: {wrong[:4]}")
        for name, (a, b) in own.items():
            a.copy_(pairs[name].a)
            b.copy_(pairs[name].b.float() * (scale * self.rank / self.alpha))
