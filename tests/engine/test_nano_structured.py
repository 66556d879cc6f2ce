"""The hybrid that ships, under constraints: real weights, a real tokenizer, and canonical literals."""

from __future__ import annotations

import jsonschema
import pytest

import trifolium

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "kind": {"enum": ["animal", "plant", "☘ clover"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 1000},
        "alive": {"type": "boolean"},
    },
    "required": ["name", "kind", "legs", "alive"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_every_mode_answers_and_verified_equals_ar(dtype: str) -> None:
    lm = trifolium.load("nano", dtype=dtype)
    for sampling in ({}, {"temperature": 1.0, "seed": 5}):
        options = {"schema": SCHEMA, "max_tokens": 100, **sampling}
        ar = lm.generate("Describe a spider.", mode="ar", **options)
        jumping = lm.generate("Describe a spider.", mode="ar", drafts="forced", **options)
        verified = lm.generate("Describe a spider.", free_rows=True, **options)
        assert ar.token_ids == jumping.token_ids == verified.token_ids
        assert jumping.passes < ar.passes and verified.passes <= jumping.passes
        diffusion = lm.generate("Describe a spider.", mode="diffusion", block_size=16, threshold=0.5, **options)
        for result in (ar, diffusion):
            assert result.complete
            jsonschema.validate(result.parsed, SCHEMA)
        # Literals are tokenized as the tokenizer itself would do it.
        assert lm.tokenizer.encode_within('{"name":"')[:2] == list(ar.token_ids[:2])
