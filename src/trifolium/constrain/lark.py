"""Grammars in either notation, and whether their rules can ever be completed."""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from ..errors import ConstraintError

_RULE = re.compile(r"^[ \t]*[!?]?([A-Za-z_][\w-]*)(?:\[[^\]\n]*\])?[ \t]*:(?!:)", re.MULTILINE)
_GBNF = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_PART = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/\w*|<[^>\n]*>)
    |(?P<name>[A-Za-z_][\w-]*)|(?P<count>\{\s*(?P<least>\d*)[^}]*\})|(?P<mark>[|()\[\]?*+])|(?P<space>\s+|//[^\n]*)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)


def to_lark(text: str) -> str:
    """The grammar in Lark's notation; GBNF (`root ::= ...`) is translated. Raises ConstraintError if that fails."""
    if not _GBNF.search(text):
        return text
    try:
        return str(any_to_lark(text))
    except (GbnfToLarkError, IndexError, KeyError, ValueError) as error:
        raise ConstraintError(f"the grammar can't be read: {error}") from None
    except RecursionError:
        raise ConstraintError("the grammar is nested too deeply") from None


def check_grammar(text: str) -> None:
    """Raises ConstraintError if no text ever completes `start`: its rules go on without end.

    The least fixpoint over all rules, starting with none. What this doesn't understand counts as completable; whether
    the grammar is one at all, the compiler says.
    """
    found = list(_RULE.finditer(text))
    if not found:
        return
    ends = [*(rule.start() for rule in found[1:]), len(text)]
    rules = {rule[1]: text[rule.end() : end] for rule, end in zip(found, ends, strict=True)}
    done: set[str] = set()
    growing = True
    while growing:
        new = {name for name, body in rules.items() if name not in done and _Body(body, done | _missing(rules)).run()}
        done |= new
        growing = bool(new)
    if "start" in rules and "start" not in done:
        stuck = ", ".join(name for name in rules if name not in done)
        raise ConstraintError(f"no text completes the grammar: give these rules an alternative that ends: {stuck}")


def _missing(rules: dict[str, str]) -> set[str]:
    """Names without a rule: terminals that are imported, or faults that the compiler reports."""
    return {name for body in rules.values() for name in re.findall(r"[A-Za-z_][\w-]*", body)} - rules.keys()


class _Body:
    """The right side of a rule, read once from left to right."""

    def __init__(self, body: str, done: set[str]) -> None:
        self._parts = [part for part in _PART.finditer(body) if part.lastgroup != "space"]
        self._done = done
        self._at = 0

    def run(self) -> bool:
        """Whether some text completes it, given the rules that are known to complete."""
        if any(part.lastgroup == "other" for part in self._parts):
            return True
        return self._choice()

    def _choice(self) -> bool:
        completes = self._sequence()
        while self._take("|"):
            completes = self._sequence() or completes
        return completes

    def _sequence(self) -> bool:
        completes = True
        while self._at < len(self._parts) and self._parts[self._at][0] not in ("|", ")", "]"):
            completes = self._item() and completes
        return completes

    def _item(self) -> bool:
        part = self._parts[self._at]
        self._at += 1
        completes = True
        if part["name"] is not None:
            completes = part["name"] in self._done
        elif part[0] in ("(", "["):
            completes = self._choice() or part[0] == "["
            self._at += 1  # what closes it
        while self._at < len(self._parts):
            after = self._parts[self._at]
            if after[0] in ("?", "*") or (after["count"] is not None and after["least"] in ("", "0")):
                completes = True
            elif after[0] != "+" and after["count"] is None:
                break
            self._at += 1
        return completes

    def _take(self, mark: str) -> bool:
        if self._at < len(self._parts) and self._parts[self._at][0] == mark:
            self._at += 1
            return True
        return False
