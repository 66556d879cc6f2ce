"""The hybrid that ships: it answers, and verified equals ar on its real weights in every dtype."""

from __future__ import annotations

import pytest

import trifolium
from trifolium.checkpoint.shelf import Shelf
from trifolium.evaluate.speed import read_prompts
from trifolium.ops.native import native

PROMPTS = [messages[-1]["content"] for messages in read_prompts(None)[:2]]
SAMPLINGS = [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 4}]


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_verified_equals_ar(dtype: str) -> None:
    if dtype == "bfloat16" and native().library is None:
        pytest.skip("bfloat16 is exact with the native kernels only")
    lm = trifolium.load("nano", dtype=dtype)
    assert lm.model.exact
    passes = tokens = 0
    for prompt in PROMPTS:
        for sampling in SAMPLINGS:
            ar = lm.generate(prompt, mode="ar", max_tokens=32, **sampling)
            for block in (4, 16):
                got = lm.generate(prompt, drafts="preview", block_size=block, free_rows=True, max_tokens=32, **sampling)
                assert got.token_ids == ar.token_ids
                passes, tokens = passes + got.passes, tokens + got.tokens
    assert passes < tokens


def test_it_is_part_of_the_package() -> None:
    shelf = Shelf.default()
    path = shelf.pull("nano", progress=False)
    assert path == shelf.installed_path("nano")
    assert shelf.installed("nano").bytes <= 30_000_000
    assert shelf.verify("nano")
    with pytest.raises(trifolium.errors.UsageError, match="part of the trifolium package"):
        shelf.remove("nano")


def test_diffusion_fills_whole_blocks() -> None:
    lm = trifolium.load("nano", dtype="float32")
    result = lm.generate(PROMPTS[0], mode="diffusion", threshold=0.0, block_size=8, max_tokens=24, ignore_eos=True)
    assert result.tokens == 24
    assert result.passes < 24
