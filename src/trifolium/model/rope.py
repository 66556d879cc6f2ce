"""Rotary positions (Su et al. 2021, arXiv:2104.09864), half-split layout: dimension i pairs with i + rotary_dim / 2."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int, max_positions: int) -> tuple[Tensor, float]:
    """Inverse frequencies [rotary_dim / 2] in float32, and the factor that cos and sin are multiplied by.

    Scalings: linear (position interpolation), dynamic (NTK-aware, evaluated once at `max_positions`, so that cached
    keys never disagree with later ones), yarn (Peng et al. 2023, arXiv:2309.00071), llama3 (Llama 3.1's
    wavelength-dependent interpolation).
    """
    dim = rope.rotary_dim or head_dim
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    original = rope.original_max_positions or max_positions
    if rope.kind == "dynamic" and max_positions > original:
        growth = rope.factor * max_positions / original - (rope.factor - 1)
        return 1.0 / (rope.theta * growth ** (dim / (dim - 2))) ** exponents, 1.0
    inverse = 1.0 / rope.theta**exponents
    if rope.kind == "linear":
        return inverse / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(inverse, rope, original), 1.0
    if rope.kind == "yarn":
        return _yarn(inverse, rope, dim, original)
    return inverse, 1.0


def _llama3(inverse: Tensor, rope: RopeConfig, original: int) -> Tensor:
    wavelength = 2 * math.pi / inverse
    smooth = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - smooth) * inverse / rope.factor + smooth * inverse
    long, short = original / rope.low_freq_factor, original / rope.high_freq_factor
    return torch.where(wavelength > long, inverse / rope.factor, torch.where(wavelength < short, inverse, blended))


def _yarn(inverse: Tensor, rope: RopeConfig, dim: int, original: int) -> tuple[Tensor, float]:
    def correction(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = correction(rope.beta_fast), correction(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2).float() - low) / max(high - low, 0.001)).clamp(0, 1)
    scaled = inverse / rope.factor * ramp + inverse * (1 - ramp)

    def mscale(factor: float, scale: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    attention = rope.attention_factor
    if attention is None:
        if rope.mscale and rope.mscale_all_dim:
            attention = mscale(rope.factor, rope.mscale) / mscale(rope.factor, rope.mscale_all_dim)
        else:
            attention = mscale(rope.factor)
    return scaled, attention


class Rope(nn.Module):
    """Cosines and sines by position, from a table that grows on demand: a position's row never depends on the pass."""

    cos: Tensor
    sin: Tensor

    def __init__(self, rope: RopeConfig, head_dim: int, max_positions: int) -> None:
        super().__init__()
        self.inverse, self.scale = inverse_frequencies(rope, head_dim, max_positions)
        self.register_buffer("cos", torch.empty(0, len(self.inverse)), persistent=False)
        self.register_buffer("sin", torch.empty(0, len(self.inverse)), persistent=False)

    def forward(self, positions: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """cos and sin [*positions.shape, rotary_dim / 2] for integer `positions`, all below `limit`."""
        if limit > len(self.cos):
            size = 1 << max(10, (limit - 1).bit_length())
            with torch.inference_mode(False):  # training may use the table that a generation made
                angles = torch.arange(size).float()[:, None] * self.inverse
                self.cos = (angles.cos() * self.scale).to(self.cos.device)
                self.sin = (angles.sin() * self.scale).to(self.sin.device)
        return self.cos[positions], self.sin[positions]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the leading dimensions of heads x [..., H, d] by cos, sin [..., rotary_dim / 2]."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)
