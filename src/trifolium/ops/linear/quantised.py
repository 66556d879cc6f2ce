"""Quantised weights, before any kernel packs them.

Letters: O outputs, I inputs, G groups of GROUP inputs; leading dimensions (experts) may come before them in int8.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .reference import quantise_rows

GROUP = 32
"""Inputs that share a step and a least value in int4."""
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
    def device(self) -> torch.device:
        """Where it lies."""
        return self.values.device

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


@dataclass(frozen=True)
class Groups:
    """int4: values [O, G * GROUP] in 0 .. 15, step and least [O, G] in float16, w = least + step * values.

    The last group is filled up with inputs that don't exist. llama.cpp's Q4_1 has the same form: weights that come from
    such a file are kept exactly.
    """

    values: Tensor
    step: Tensor
    least: Tensor
    inputs: int

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I)."""
        return self.values.shape[0], self.inputs

    @property
    def device(self) -> torch.device:
        """Where it lies."""
        return self.values.device

    def dequantise(self) -> Tensor:
        """float32 [O, I]."""
        groups = self.values.view(len(self.values), -1, GROUP).float()
        w = self.least.float()[..., None] + self.step.float()[..., None] * groups
        return w.flatten(1)[:, : self.inputs]


def quantise(weight: Tensor) -> QuantisedWeight:
    """A weight [..., O, I] of any float dtype to int8, each row by the rule of `reference.quantise_rows`."""
    values, scale = quantise_rows(weight.float().reshape(-1, weight.shape[-1]), LIMIT)
    return QuantisedWeight(values.view(weight.shape), scale.view(weight.shape[:-1]))


def quantise_groups(weight_OI: Tensor) -> Groups:
    """To int4: each group's least value is 0 and its largest 15."""
    inputs = weight_OI.shape[1]
    w = weight_OI.float()
    if pad := -inputs % GROUP:  # with a value that the group has already, so that its range stays
        w = F.pad(w[:, None], (0, pad), mode="replicate")[:, 0]
    groups = w.view(len(w), -1, GROUP)
    least = groups.amin(-1).half()
    step = ((groups.amax(-1) - groups.amin(-1)) / 15).half()
    inverse = torch.where(step > 0, 1.0 / step.float(), 0.0)
    values = ((groups - least.float()[..., None]) * inverse[..., None]).round_().clamp_(0, 15)
    return Groups(values.to(torch.uint8).flatten(1), step, least, inputs)
