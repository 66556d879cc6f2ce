"""Attention over contexts and blocks: reference and fast paths."""

from .tiled import attend_causal_exact, attend_masked

__all__ = ["attend_causal_exact", "attend_masked"]
