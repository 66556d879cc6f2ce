"""Constraints: JSON Schemas, regular expressions and grammars that say what an answer may be, token by token."""

from .compiler import Compiler
from .guide import Allowed, Guide
from .spec import Constraint, grammar, json_schema, regex
from .thoughts import Thoughts

__all__ = ["Allowed", "Compiler", "Constraint", "Guide", "Thoughts", "grammar", "json_schema", "regex"]
