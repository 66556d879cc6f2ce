"""Quantised weights, before any kernel packs them.

Letters: O outputs, I inputs; leading dimensions (experts) may come before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .reference import quantise_rows

LIMIT = 127
"""Largest integer: symmetric, so that -128 never occurs."""


@dataclass(frozen=True, eq=False)
class QuantisedWeight:
    """int8, symmetric per output: values [..., O, I] in -LIMIT .. LIMIT and scale [..., O], w = scale * values."""

    values: Tensor
    scale: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the weight: [..., O, I]."""
        return self.values.shape

    @property
    def nbytes(self) -> int:
        """Bytes of integers and scales."""
        return self.values.nbytes + self.scale.nbytes

    def dequantise(self) -> Tensor:
        """float32 [..., O, I], which `quantise` turns into these very integers and scales again.

        That holds since a scale is some float32 over LIMIT, rounded: LIMIT * scale rounds to a number of which that is
        true too, for every float32 there is (tested). Only where it would overflow, the largest float takes its place.
        """
        weight = self.values.float().mul_(self.scale[..., None])
        if (self.scale * LIMIT).isinf().any():
            largest = torch.finfo(torch.float32).max
            weight.clamp_(-largest, largest)
        return weight


def quantise(weight: Tensor) -> QuantisedWeight:
    """A weight [..., O, I] of any float dtype to int8, each row by the rule of `reference.quantise_rows`."""
    values, scale = quantise_rows(weight.float().reshape(-1, weight.shape[-1]), LIMIT)
    return QuantisedWeight(values.view(weight.shape), scale.view(weight.shape[:-1]))
