"""Lessons: supervised conversations about invented tools and texts, all from a seed.

No line is taken from anywhere: tools, requests, values and texts are drawn from lists and put together. What they
teach: calling tools, with arguments copied from requests; not calling them; asking back; extraction; typed decisions.
"""

from .write import LessonConfig, Statistics, lessons, write_lessons

__all__ = ["LessonConfig", "Statistics", "lessons", "write_lessons"]
