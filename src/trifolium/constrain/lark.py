"""Grammars in either notation."""

from __future__ import annotations

from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from ..errors import ConstraintError


def to_lark(text: str) -> str:
    """The grammar in Lark's notation; GBNF (`root ::= ...`) is translated. Raises ConstraintError if that fails."""
    try:
        return str(any_to_lark(text))
    except (GbnfToLarkError, IndexError, KeyError, ValueError) as error:
        raise ConstraintError(f"the grammar can't be read: {error}") from None
    except RecursionError:
        raise ConstraintError("the grammar is nested too deeply") from None


def check_grammar(text: str) -> None:
    """Raises ConstraintError for a rule that no text can complete."""
