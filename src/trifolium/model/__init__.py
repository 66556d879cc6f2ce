"""The model, its states and its rows."""

from .adapter import Adapter
from .blocks import Blocks
from .rows import MASK, RequestRows, Rows
from .state import RequestState
from .transformer import Transformer

__all__ = ["MASK", "Adapter", "Blocks", "RequestRows", "RequestState", "Rows", "Transformer"]
