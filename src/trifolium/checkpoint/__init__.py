"""Where weights come from and go to: name tables, readers, writers, adapters and the shelf of models."""

from .checkpoint import Checkpoint, open_checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]
