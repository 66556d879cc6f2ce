"""Where weights come from and go to: name tables, readers, writers, adapters and the shelf of models.

The exports load when they are first used: `trifolium models list` needs the shelf, but not torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapter_file import check_base, load_adapter, read_adapter_config, save_adapter
    from .checkpoint import Checkpoint, open_checkpoint
    from .names import expected_shapes
    from .shelf import Shelf, ShelfEntry
    from .skills_file import Skills, read_skills, read_skills_config, save_skills
    from .writer import write_hf

_HOMES = {
    "Checkpoint": "checkpoint",
    "Shelf": "shelf",
    "ShelfEntry": "shelf",
    "Skills": "skills_file",
    "check_base": "adapter_file",
    "expected_shapes": "names",
    "load_adapter": "adapter_file",
    "open_checkpoint": "checkpoint",
    "read_adapter_config": "adapter_file",
    "read_skills": "skills_file",
    "read_skills_config": "skills_file",
    "save_adapter": "adapter_file",
    "save_skills": "skills_file",
    "write_hf": "writer",
}

__all__ = [
    "Checkpoint",
    "Shelf",
    "ShelfEntry",
    "Skills",
    "check_base",
    "expected_shapes",
    "load_adapter",
    "open_checkpoint",
    "read_adapter_config",
    "read_skills",
    "read_skills_config",
    "save_adapter",
    "save_skills",
    "write_hf",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
