"""The gated delta rule: whole sequences in chunks, and the engine's rows one by one."""

from .chunked import Chunked, Trace, chunked, state_at
from .rows import Advanced, advance, apply

__all__ = ["Advanced", "Chunked", "Trace", "advance", "apply", "chunked", "state_at"]
