"""Drafts fitted to a constraint: what it forbids is gone, what it forces is there, and nothing else changed."""

from __future__ import annotations

import random

import pytest

from structured_engine import END, PADDED, TURN, json_tokenizer
from trifolium.constrain import Compiler, Guide, json_schema, regex
from trifolium.engine.drafts import Calibration, Draft
from trifolium.engine.fitting import MAX_FITTED, ForcedDrafts, OptionDrafts, fit
from trifolium.engine.skeleton import Slots

TOKENIZER = json_tokenizer()
FLAGS = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["red", "the"]}, "c": {"type": "string"}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(TOKENIZER, {END, TURN}, PADDED)


def paths(draft: Draft) -> list[tuple[int, ...]]:
    """Every node's tokens from the root on."""
    out: list[tuple[int, ...]] = []
    for i, token in enumerate(draft.tokens):
        parent = draft.parent(i)
        out.append((*(out[parent] if parent >= 0 else ()), token))
    return out


def check(draft: Draft, guide: Guide, limit: int) -> None:
    """Every token is allowed after what it follows, siblings differ, and `forced` says exactly where one is alone."""
    found = paths(draft)
    assert len(set(found)) == len(found) <= MAX_FITTED
    for i, path in enumerate(found):
        allowed = guide.after(path[:-1])
        assert path[-1] in allowed and len(path) <= limit
        assert (i in draft.forced) == (allowed.single is not None)
        assert i not in draft.forced or draft.confidences[i] == 1.0
    kept = draft.keep(range(len(draft.tokens)))
    assert kept.forced == draft.forced


@pytest.mark.parametrize("seed", range(12))
def test_fitted_trees_hold_what_is_allowed_and_what_is_forced(compiler, seed):
    rng = random.Random(seed)
    guide = compiler.guide(json_schema(FLAGS))
    for token in guide.run():
        guide.push(token)
    tokens, parents = [], []
    for i in range(rng.randint(0, 20)):
        parent = rng.randint(-1, i - 1)
        siblings = {tokens[j] for j in range(i) if parents[j] == parent}
        tokens.append(rng.choice([t for t in [*TOKENIZER.encode('truefalse,"b":"red'), 3, END] if t not in siblings]))
        parents.append(parent)
    draft = Draft(tuple(tokens), tuple(rng.uniform(0.3, 0.9) for _ in tokens), "x", "x", tuple(parents))
    limit = rng.randint(1, 12)
    fitted = fit(draft, guide, limit)
    check(fitted, guide, limit)
    assert (fitted.source, fitted.kind) == ("x", "x")
    whole = set(paths(draft))
    free = [path for i, path in enumerate(paths(fitted)) if i not in fitted.forced]
    assert all(path in whole or path[:-1] not in whole for path in free)


def test_forced_drafts_are_the_literals(compiler):
    guide = compiler.guide(json_schema(FLAGS))
    draft = ForcedDrafts(guide).propose(50)
    check(draft, guide, 50)
    assert TOKENIZER.decode(draft.tokens).startswith('{"a') and draft.source == "forced"
    assert len(ForcedDrafts(guide).propose(1).tokens) == 1


def test_options_are_all_fillings_with_what_follows(compiler):
    guide = compiler.guide(json_schema(FLAGS))
    source = OptionDrafts(guide, TOKENIZER)
    assert source.propose(30).tokens == ()  # rows have a price
    source.affordable = True
    draft = source.propose(30)
    check(draft, guide, 30)
    texts = {TOKENIZER.decode(path) for path in paths(draft)}
    for flag in ("true", "false"):
        for name in ("red", "the"):
            assert any(text.startswith(f'{{"a":{flag},"b":"{name}"') for text in texts)
    assert not any(text.startswith('{"a":tr') and "true" not in text for text in texts)


def test_calibration_learns_nothing_from_what_is_forced():
    forced = Draft((1, 2), (1.0, 0.5), "s", "k", (-1, 0), frozenset({0}))
    learned = Calibration()
    learned.learn(forced, (1, 9))
    only = Calibration()
    only.learn(Draft((2,), (0.5,), "s", "k"), (9,))
    probe = Draft((4,), (0.5,), "s", "k")
    assert learned.estimate(probe) == only.estimate(probe)
    assert learned.estimate(forced)[0] == 1.0


def test_sketches_know_where_slots_end(compiler):
    guide = compiler.guide(
        json_schema({"type": "array", "prefixItems": [{"type": "boolean"}] * 3, "minItems": 3, "items": False})
    )
    for token in guide.run():
        guide.push(token)
    sketch = Slots(guide, TOKENIZER).sketch((), 30)
    comma, close = TOKENIZER.encode(","), TOKENIZER.encode("]")
    assert sketch == (None, *comma, None, *comma, None, *close)
    open_ = compiler.guide(regex("[a-z]+!"))
    assert Slots(open_, TOKENIZER).sketch((), 5) == (None,) * 5
