"""Tool calls: what tools are, how models write calls of them, and how turns with calls are laid out and read."""

from .formats import ToolFormat, constraint_of, format_of
from .layout import knows_tools, lay_out
from .spec import MAX_TOOLS, Tool, ToolCall, ToolUse, read_arguments, read_tools, read_use
from .turn import Said, Turn, TurnReader

__all__ = [
    "MAX_TOOLS",
    "Said",
    "Tool",
    "ToolCall",
    "ToolFormat",
    "ToolUse",
    "Turn",
    "TurnReader",
    "constraint_of",
    "format_of",
    "knows_tools",
    "lay_out",
    "read_arguments",
    "read_tools",
    "read_use",
]
