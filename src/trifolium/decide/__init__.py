"""Typed questions about one state: answered each by itself, or jointly and without contradiction."""

from .answers import Answer, Assigned, Decisions, JointAnswer, Usage
from .deliberate import Deliberation, Temperatures, decide, deliberate
from .inquiry import Group, Inquiry
from .questions import Option, Question
from .sheet import Writer, text_of

__all__ = [
    "Answer",
    "Assigned",
    "Decisions",
    "Deliberation",
    "Group",
    "Inquiry",
    "JointAnswer",
    "Option",
    "Question",
    "Temperatures",
    "Usage",
    "Writer",
    "decide",
    "deliberate",
    "text_of",
]
