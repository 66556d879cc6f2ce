"""What a guide says depends on the tokens alone, and only text that its constraint describes comes out."""

from __future__ import annotations

import json
import random

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from random_schemas import SCHEMAS
from structured_engine import END, FREE, MASKED, PADDED, TURN, json_tokenizer
from trifolium.constrain import Compiler, Constraint, Guide, grammar, json_schema, regex
from trifolium.errors import ConstraintError

COMPILER = Compiler(json_tokenizer(), {END, TURN}, PADDED)
EXAMPLES = [
    json_schema(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 6},
                "value": {"enum": ["red", "rest", "blue"]},
                "n": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
            },
            "required": ["name", "value", "n"],
            "additionalProperties": False,
        }
    ),
    json_schema({"anyOf": [{"type": "boolean"}, {"const": "trié"}, {"type": "null"}]}),
    regex(r"(ab|abc)*the( the){2}"),
    grammar('start: "(" inner* ")"\ninner: start | "ab" | /[0-9]{1,3}/'),
]


def walk(guide: Guide, rng: random.Random, limit: int = 200, ending: float = 0.3) -> list[int]:
    """Random allowed tokens until the text is complete; ends early where it may, mostly. Empty at the `limit`."""
    out: list[int] = []
    while len(out) < limit:
        allowed = guide.after()
        if allowed.ended:
            return out
        ids = allowed.ids.tolist()
        if END in ids and (rng.random() < ending or ids == [END, TURN]):
            return out
        token = rng.choice([i for i in ids if i not in (END, TURN)])
        guide.push(token)
        out.append(token)
    return []


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS, st.integers(0, 2**32))
def test_whatever_is_written_validates(schema, seed):
    rng = random.Random(seed)
    guide = COMPILER.guide(json_schema(schema))
    tokens = walk(guide, rng, ending=0.6)
    if tokens:
        text = json_tokenizer().decode(tokens)
        jsonschema.validate(json.loads(text), schema)
        assert not any(token in (FREE, END, TURN, MASKED) for token in tokens)


@pytest.mark.parametrize("constraint", EXAMPLES, ids=lambda c: c.kind)
def test_masks_depend_on_the_tokens_alone(constraint: Constraint):
    """Looking ahead along random paths, in any order, changes nothing: the guide equals one that never looked."""
    for seed in range(8):
        rng = random.Random(seed)
        guide, written = COMPILER.guide(constraint), list[int]()
        for _ in range(25):
            if guide.ended:
                break
            paths = []
            for _ in range(3):
                path: list[int] = []
                for _ in range(rng.randint(0, 6)):
                    allowed = guide.after(path)
                    choices = [] if allowed.ended else [i for i in allowed.ids.tolist() if i not in (END, TURN)]
                    if not choices:
                        break
                    path.append(rng.choice(choices))
                paths.append(path)
            for path in rng.sample(paths, len(paths)):
                plain = COMPILER.guide(constraint)
                for token in [*written, *path]:
                    plain.push(token)
                assert plain.after() == guide.after(path)
            choices = [i for i in guide.after().ids.tolist() if i not in (END, TURN)]
            if not choices:
                break
            token = rng.choice(choices)
            guide.push(token)
            written.append(token)


def test_end_tokens_only_where_the_text_may_end(compiler):
    guide = compiler.guide(regex("ab+"))
    assert END not in guide.after() and TURN not in guide.after()
    guide.push(ord("a"))
    assert END not in guide.after()
    guide.push(ord("b"))
    assert END in guide.after() and TURN in guide.after() and ord("b") in guide.after()
    assert not guide.ended
    never = compiler.guide(regex("ab"), may_end=False)
    never.push(ord("a"))
    assert END not in never.after()
    never.push(ord("b"))
    assert never.ended


def test_special_free_and_padding_ids_are_never_allowed(compiler):
    guide = compiler.guide(regex("(?s:.*)"))
    allowed = guide.after()
    assert not {FREE, MASKED} & set(allowed.ids.tolist())
    assert max(allowed.ids) < END + 3 and PADDED - 1 not in allowed and 10**9 not in allowed
    assert {END, TURN} <= set(allowed.ids.tolist())
    assert allowed.count == len(allowed.ids)


def test_text_of_special_tokens_is_text(compiler, tokenizer):
    guide = compiler.guide(regex(r"<\|end\|>"))
    run = guide.run()
    assert tokenizer.decode(run) == "<|end|>" and END not in run and len(run) > 1


def test_forced_runs_are_where_there_is_no_choice(compiler, tokenizer):
    guide = compiler.guide(EXAMPLES[0])
    run = guide.run()
    assert tokenizer.decode(run).startswith('{"name')
    assert guide.run(limit=2) == run[:2]
    for i, token in enumerate(run):
        assert guide.after(run[:i]).single == token
    assert guide.after(run).single is None


def test_what_is_forbidden_is_an_error(compiler):
    guide = compiler.guide(regex("ab"))
    with pytest.raises(ConstraintError, match="satisfy"):
        guide.push(ord("x"))


def test_no_way_to_go_on_is_an_error():
    """A grammar that asks for a special token: none ever appears."""
    guide = COMPILER.guide(grammar(f'start: "ab" <[{MASKED}]> "c"'))
    with pytest.raises(ConstraintError, match="special token"):
        guide.run()
