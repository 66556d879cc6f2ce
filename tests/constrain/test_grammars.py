"""Grammars and patterns: both notations, and what is refused before it could go on for ever."""

from __future__ import annotations

import pytest

from structured_engine import END
from trifolium.constrain import Constraint, grammar, regex
from trifolium.errors import ConstraintError


def matches(compiler, constraint: Constraint, text: str) -> bool:
    """Whether the constraint allows exactly this text, byte for byte."""
    guide = compiler.guide(constraint)
    try:
        for byte in text.encode():
            guide.push(byte)
        allowed = guide.after()
    except ConstraintError:
        return False
    return allowed.ended or END in allowed


def test_both_notations_say_the_same(compiler):
    lark = grammar('start: "(" item ("," item)* ")"\nitem: /[a-c]{1,2}/ | start')
    gbnf = grammar('root ::= "(" item ("," item)* ")"\nitem ::= [a-c]{1,2} | root')
    for constraint in (lark, gbnf):
        for text in ("(a)", "(ab,c)", "((a),(b,cc))"):
            assert matches(compiler, constraint, text)
        for text in ("", "(", "()", "(abc)", "(a,)", "(a))", "(d)"):
            assert not matches(compiler, constraint, text)


def test_patterns_match_whole_texts(compiler):
    date = regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}|never")
    assert matches(compiler, date, "2026-12-01") and matches(compiler, date, "never")
    assert not matches(compiler, date, "2026-12-01 ") and not matches(compiler, date, "neve")
    unicode = regex("[ä-ü☘]+")
    assert matches(compiler, unicode, "äü☘") and not matches(compiler, unicode, "a")


@pytest.mark.parametrize(
    "text",
    [
        'start: "a" start',
        "start: a\na: b\nb: a",
        'start: ("x" | "y") more\nmore: "," more | (more "z")+',
        'root ::= "a" root',
        "start: start",
        'start: "a"{2} b{1,3}\nb: "c" b',
    ],
)
def test_grammars_without_end_are_refused(text):
    with pytest.raises(ConstraintError, match="no text completes the grammar"):
        grammar(text)


@pytest.mark.parametrize(
    "text",
    [
        'start: "a" start | "b"',
        'start: "a" start?',
        'start: ["," start]',
        'start: "a" b{0,2}\nb: "c" b',
        'start: (start "x" | /y|z/)',
        'start: "a:b | c" WORD\nWORD: /[a-z]+/',
        'start: %json {"type": "string"}',
        'start[max_tokens=9]: "q" // start: "a" start',
        '?start: item\nitem: "\\"" start? "\\""',
    ],
)
def test_grammars_with_an_end_are_not(compiler, text):
    compiler.guide(grammar(text)).after()


@pytest.mark.parametrize(
    ("make", "text", "why"),
    [
        (regex, "(", "can't be used"),
        (regex, "(?=a)b", "look-around"),
        (regex, "", "empty"),
        (regex, "a" * 300_000, "bytes"),
        (regex, "(" * 200 + "a" + ")" * 200, "nested"),
        (regex, "\ud800", "surrogate"),
        (grammar, "start: foo", "unknown name"),
        (grammar, "nothing of the kind", "can't be"),
        (grammar, "root ::= ", "e"),
        (grammar, "root ::= [a", "can't be read"),
        (grammar, 'root ::= "\\', "can't be"),
        (grammar, "start: " + "(" * 3000 + '"a"' + ")" * 3000, "nested"),
    ],
)
def test_what_is_no_constraint_is_refused(compiler, make, text, why):
    with pytest.raises(ConstraintError, match=why):
        guide = compiler.guide(make(text))
        if guide.ended:  # an empty rule describes the empty text
            raise ConstraintError("empty")


@pytest.mark.parametrize(
    "pattern", ["((a{1,100}){1,100}){1,100}", "(a|b)*a(a|b){24}", "(a?){500}a{500}", "(.*a){20}", "(x+x+)+y"]
)
def test_patterns_that_blow_up_are_bounded(compiler, pattern):
    """Refused or followed, each step in a bounded time: nothing builds the whole automaton."""
    guide = compiler.guide(regex(pattern))
    for byte in b"ab" * 20 if "b" in pattern else b"a" * 40:
        try:
            if byte in guide.after():
                guide.push(byte)
        except ConstraintError:
            break


def test_nothing_can_match(compiler):
    with pytest.raises(ConstraintError):
        compiler.guide(regex("[^\\x00-\\U0010ffff]")).after()
