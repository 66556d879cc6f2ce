"""How a delta-net layer previews a block: a softmax over the block's rows and one history slot."""

from .fast import preview
from .params import PreviewParams, initial_preview

__all__ = ["PreviewParams", "initial_preview", "preview"]
