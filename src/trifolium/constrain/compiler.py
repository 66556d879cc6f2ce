"""From constraints to guides: the bridge to llguidance, its limits, and a bounded cache of what was compiled.

llguidance (1.9) parses schemas, patterns and grammars, and computes token masks; xgrammar was not measured.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from ..errors import ConstraintError
from ..text import Tokenizer
from .guide import Guide
from .spec import Constraint
from .thoughts import ThoughtfulGuide, Thoughts

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # only in its type stubs

CACHED = 64
"""Compiled constraints that an engine keeps."""

CACHED_BYTES = 1 << 22
"""UTF-8 bytes of all constraints that it keeps, at most: what compiling makes of them is larger, but grows with it."""


def parser_limits() -> LLParserLimits:
    """What bounds compiling and every step after it. Numbers: docs/log.md."""
    return LLParserLimits(
        initial_lexer_fuel=2_000_000,
        step_lexer_fuel=500_000,
        step_max_items=50_000,
        max_items_in_row=2_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


class _Pieces:
    """A tokenizer as llguidance wants it. Ids without text become special: they can't be part of any text."""

    def __init__(self, tokenizer: Tokenizer, ends: list[int]) -> None:
        self._tokenizer = tokenizer
        special = tokenizer.special_ids | set(ends)
        pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.plain = frozenset(i for i, piece in enumerate(pieces) if piece and i not in special)
        self._ids = {pieces[i]: i for i in sorted(self.plain, reverse=True)}
        self._widest = max(map(len, self._ids), default=0)
        if not ends:  # it can't do without; nobody is ever shown this one
            ends = [len(pieces)]
            pieces.append(b"")
        self.eos_token_id = ends[0]
        self.eos_tokens = ends
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = [i for i in range(len(pieces)) if i not in self.plain]
        for i in self.special_token_ids:
            pieces[i] = b"<%d>" % i
        self.tokens = pieces

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, those that were added to the vocabulary included, but no special ones."""
        return self._tokenizer.encode(text, special=False)

    def bytes_of(self, token: int) -> bytes:
        """A token's text; none for ids beyond the vocabulary."""
        return self._tokenizer.token_bytes(token) if token < self._tokenizer.vocab_size else b""

    def __call__(self, text: str) -> list[int]:
        ids, data = self._tokenizer.encode_within(text), text.encode()
        return ids if self._tokenizer.decode_bytes(ids) == data else self._longest(data)

    def _longest(self, data: bytes) -> list[int]:
        """Longest tokens first: for text that the tokenizer itself would change (it may normalise)."""
        ids: list[int] = []
        while data:
            size = next((n for n in range(min(len(data), self._widest), 0, -1) if data[:n] in self._ids), 0)
            if not size:
                return []  # no tokens spell it
            ids.append(self._ids[data[:size]])
            data = data[size:]
        return ids


class Compiler:
    """Makes guides for one tokenizer. Safe to share between threads; a guide belongs to one request.

    `vocab_size`: the model's, whose padding beyond the tokenizer's is never allowed. `eos_ids`: what may end an answer.
    Raises ConstraintError if the tokenizer has no text at all.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Iterable[int], vocab_size: int) -> None:
        ends = sorted(i for i in eos_ids if i < tokenizer.vocab_size)
        pieces = _Pieces(tokenizer, ends)
        self._tokenizer = LLTokenizer(TokenizerWrapper(pieces), eos_token=pieces.eos_tokens)
        self._pieces = pieces
        self._ends = _bits(ends)
        self._text = _bits(i for i in pieces.plain if i < vocab_size)
        self._made: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many compiled constraints are kept."""
        return len(self._made)

    def guide(self, constraint: Constraint, *, may_end: bool = True) -> Guide:
        """A guide at the start of an answer. `may_end`: whether end tokens are allowed where the constraint is met.

        Raises ConstraintError if the constraint can't be compiled, is too complex, or nothing satisfies it.
        """
        with self._lock:
            matcher = self._made.get(constraint)
            if matcher is None:
                matcher = self._compile(constraint)
                self._keep(constraint, matcher)
            self._made.move_to_end(constraint)
            matcher = matcher.deep_copy()
        return Guide(matcher, self._text, self._ends if may_end else 0, constraint.kind)

    def thoughtful(self, thoughts: Thoughts, inner: Guide | None, *, may_end: bool = True) -> Guide:
        """A guide that closes an answer's think block when its budget is spent, and follows `inner` besides."""
        return ThoughtfulGuide(
            thoughts,
            inner,
            text=self._text,
            ends=self._ends if may_end else 0,
            close=self._pieces.encode("\n</think>"),
            piece=self._pieces.bytes_of,
        )

    def _compile(self, constraint: Constraint) -> LLMatcher:
        try:
            source = _source(constraint)
            matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=parser_limits())
        except (ValueError, TypeError) as error:
            raise ConstraintError(f"the {constraint.kind} can't be used: {_said(error)}") from None
        if matcher.is_error():
            raise ConstraintError(f"the {constraint.kind} can't be used: {_said(matcher.get_error())}")
        return matcher

    def _keep(self, constraint: Constraint, matcher: LLMatcher) -> None:
        self._made[constraint] = matcher
        size = sum(len(kept.text) for kept in self._made)
        while len(self._made) > 1 and (len(self._made) > CACHED or size > CACHED_BYTES):
            dropped, _ = self._made.popitem(last=False)
            size -= len(dropped.text)


def _source(constraint: Constraint) -> str:
    if constraint.kind == "regex":
        return LLMatcher.grammar_from_regex(constraint.text)
    if constraint.kind == "grammar":
        return LLMatcher.grammar_from_lark(constraint.text)
    white: JsonCompileOptions = {"whitespace_flexible": False, "whitespace_pattern": constraint.whitespace}
    return LLMatcher.grammar_from_json_schema(constraint.text, overrides=white)


def _said(error: object) -> str:
    """What llguidance says, on one line and without advice that doesn't apply here."""
    if "coerce_one_of" in str(error):
        return "alternatives of oneOf that may overlap are not supported: use anyOf"
    return " ".join(str(error).split())[:300] or "no reason given"


def _bits(ids: Iterable[int]) -> int:
    bits = bytearray()
    for i in ids:
        if i >> 3 >= len(bits):
            bits.extend(bytes((i >> 3) + 1 - len(bits)))
        bits[i >> 3] |= 1 << (i & 7)
    return int.from_bytes(bits, "little")
