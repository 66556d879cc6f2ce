"""The compile cache is bounded, keyed by the constraint, and safe to share."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from structured_engine import END, PADDED, json_tokenizer
from trifolium.constrain import Compiler, compiler, json_schema, regex


def fresh() -> Compiler:
    return Compiler(json_tokenizer(), {END}, PADDED)


def test_equal_constraints_are_compiled_once(monkeypatch):
    made, one = [], fresh()
    real = Compiler._compile
    monkeypatch.setattr(
        Compiler, "_compile", lambda self, constraint: made.append(constraint) or real(self, constraint)
    )
    first, second = one.guide(regex("ab+")), one.guide(regex("ab+"))
    assert len(made) == len(one) == 1
    first.push(ord("a"))  # guides don't share their place
    assert first.after() != second.after()
    one.guide(json_schema({"type": "string"}))
    one.guide(json_schema({"type": "string"}, whitespace="[ ]?"))
    assert len(made) == len(one) == 3


def test_the_cache_is_bounded(monkeypatch):
    one = fresh()
    for i in range(compiler.CACHED + 20):
        one.guide(regex(f"x{i}"))
    assert len(one) == compiler.CACHED
    monkeypatch.setattr(compiler, "CACHED_BYTES", 1000)
    one.guide(regex("y" * 999))
    assert len(one) == 1


def test_a_compiler_may_be_shared_between_threads():
    one = fresh()

    def run(i: int) -> bool:
        guide = one.guide(regex(f"a{{{i % 5}}}b"))
        for _ in range(i % 5):
            guide.push(ord("a"))
        guide.push(ord("b"))
        return guide.ended

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(100)))


def test_without_end_tokens():
    one = Compiler(json_tokenizer(), (), PADDED)
    guide = one.guide(regex("a*"))
    assert max(guide.after().ids) < END
