"""Cached prefixes: a hit leaves the bits that a cold start would, in every mode, and saves the work."""

from __future__ import annotations

import random

import pytest
import torch

from tiny_engine import VOCAB
from trifolium.config import DecodeConfig, SamplingParams
from trifolium.engine import Engine, Request

SAMPLED = SamplingParams(temperature=1.0, seed=11)


def make(prompt, mode="verified", tokens=12, sampling=SAMPLED, **options) -> Request:
    return Request(prompt, sampling, DecodeConfig(mode=mode, max_tokens=tokens, ignore_eos=True, **options))


def bits_after_the_prompt(engine: Engine, prompt: list[int]) -> list[torch.Tensor]:
    """All that the state holds once the prompt is committed; the request then runs to its end."""
    handle = engine.add(make(prompt, "ar", 2))
    while not handle._live.passes:
        engine.step()
    state = handle._live.state
    assert state.length == len(prompt)
    held = [t for parts in (state.cells(0, len(prompt)), state.snapshot()) for layer in parts for t in layer]
    while engine.step():
        pass
    return held


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("hybrid", [False, True], ids=["dense", "hybrid"])
def test_a_hit_leaves_the_bits_of_a_cold_start(models, mixed, dtype, hybrid):
    """Prompts that repeat, extend, cut short and leave one another, after answers and in the midst of chunks."""
    model = models(dtype, hybrid=hybrid)
    rng = random.Random(6)
    first = [rng.randrange(VOCAB) for _ in range(53)]
    engine = Engine(model)
    answer = list(engine.run([make(first, "ar", 20)])[0].token_ids)
    prompts = [first, first[:40], first[:49], first[:33], first + answer + [5, 6, 7], first + answer[:9] + [1] * 20]
    prompts += [first[:37] + [8] * 9, first[:37] + [9] * 30, first[:37] + [10] * 5, [4, *first], first]
    for prompt in prompts:
        ours, theirs = bits_after_the_prompt(engine, prompt), bits_after_the_prompt(Engine(model), prompt)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    stats = engine.stats()
    assert stats.hits >= 5 and 0 < stats.hit_rate < 1
    assert 130 < stats.reused_tokens < stats.prompt_tokens


@pytest.mark.parametrize("hybrid", [False, True], ids=["dense", "hybrid"])
@pytest.mark.parametrize("mode", ["ar", "verified", "diffusion"])
def test_answers_after_a_hit_are_those_of_a_cold_start(models, mixed, mode, hybrid):
    """A conversation of four turns, alone: also the previews of diffusion read the same context."""
    model = models(torch.int8, hybrid=hybrid)
    engine, talk, cached, last = Engine(model), [3] * 20 + [4] * 13, 0, 0
    for turn in range(4):
        request = make(list(talk), mode, 10, block_size=4)
        warm = engine.run([request])[0]
        cold = Engine(model, max_prefix_bytes=0).run([request])[0]
        assert warm.token_ids == cold.token_ids
        assert cold.cached_tokens == 0 and warm.cached_tokens <= warm.prompt_tokens - 1
        if turn:
            # On the grid, all whole chunks of the last prompt; else all of the last turn but what it didn't commit.
            if mixed:
                assert warm.cached_tokens >= len(talk) - 3 - (4 if mode == "diffusion" else 1)
            else:
                assert warm.cached_tokens == (last - 1) // 16 * 16
            assert warm.prompt_passes < cold.prompt_passes
        cached += warm.cached_tokens
        last = len(talk)
        talk += [*warm.token_ids, turn, turn, turn]
    assert engine.stats().reused_tokens == cached


def test_the_same_prompt_again_is_not_computed_again(models, mixed):
    for hybrid in (False, True):
        engine = Engine(models(hybrid=hybrid))
        prompt = list(range(43))
        first, second = engine.run([make(prompt)])[0], engine.run([make(prompt)])[0]
        assert first.token_ids == second.token_ids
        assert (first.cached_tokens, second.cached_tokens) == (0, 42)
        assert (first.prompt_passes > 0, second.prompt_passes) == (True, 0)
        engine.forget_prefixes()
        assert engine.run([make(prompt)])[0].cached_tokens == 0


@pytest.mark.parametrize("hybrid", [False, True], ids=["dense", "hybrid"])
def test_requests_that_come_together_share_a_prompt(models, mixed, hybrid):
    """One of them computes it, and the others take it over while it still runs."""
    model = models(hybrid=hybrid)
    shared = [i % 7 for i in range(64)]
    requests = [make([*shared, *([50 + i] * (i + 1))]) for i in range(5)]
    engine = Engine(model)
    results = engine.run(requests)
    for result, request in zip(results, requests, strict=True):
        assert result.token_ids == Engine(model).run([request])[0].token_ids
    stats = engine.stats()
    assert stats.prompt_tokens - stats.reused_tokens <= 64 + 16 * 5


def test_a_branch_of_a_hybrids_prompts_gets_a_snapshot_the_second_time(models, mixed):
    """Nobody knows where system prompts end; once two prompts have parted, a third one finds the place."""
    engine = Engine(models(hybrid=True))
    shared = [i % 7 for i in range(48)]
    cached = [engine.run([make(shared + [60 + i] * 20)])[0].cached_tokens for i in range(3)]
    assert cached[0] == 0 and cached[2] == 48


def test_an_adapter_changes_nothing_that_is_kept(models, mixed):
    """Cells and snapshots come from commit rows, which the adapter doesn't touch."""
    prompt = list(range(40))
    held = []
    for adapter in (False, True):
        engine = Engine(models(torch.int8, adapter=adapter, hybrid=True))
        engine.run([make(prompt, "diffusion" if adapter else "ar", 1)])
        held.append({node.tokens.tobytes(): node for node in engine._scheduler.prefixes})
    assert held[0].keys() == held[1].keys()
    for key, node in held[0].items():
        twin = held[1][key]
        assert all(
            torch.equal(a, b) for x, y in zip(node.cells, twin.cells, strict=True) for a, b in zip(x, y, strict=True)
        )


def test_failed_and_cancelled_requests_leave_nothing_wrong(models, mixed):
    """A state that is not finite is never kept, nor what a cancelled request has not computed."""
    model, prompt = models(), list(range(60))
    engine = Engine(model)
    handle = engine.add(make(prompt))
    engine.step()
    with torch.inference_mode():
        handle._live.state.layers[0].keys[:, 0] = float("nan")
    while engine.step():
        pass
    assert handle._live.error is not None
    cancelled = engine.add(make(prompt))
    engine.step()
    cancelled.cancel()
    result = engine.run([make(prompt)])[0]
    assert result.token_ids == Engine(model).run([make(prompt)])[0].token_ids
    for node in engine._scheduler.prefixes:
        assert all(bool(t.isfinite().all()) for layer in node.cells for t in layer)
