"""Attention over contexts and blocks: reference and fast paths."""

from .tiled import attend_causal_exact, attend_masked, whole_cells

__all__ = ["attend_causal_exact", "attend_masked", "whole_cells"]
