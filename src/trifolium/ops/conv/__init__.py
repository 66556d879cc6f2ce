"""Depthwise convolutions over time with SiLU: causal for commit rows, two-sided for previews."""

from .rows import path_index, ring_after, rows
from .sequences import causal, two_sided

__all__ = ["causal", "path_index", "ring_after", "rows", "two_sided"]
