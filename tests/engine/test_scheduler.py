"""Who gets rows: shares, prompts beside answers, and nobody waits for ever."""

from __future__ import annotations

import random

import pytest
import torch

from tiny_engine import VOCAB
from trifolium.config import DecodeConfig
from trifolium.engine import Engine, Request
from trifolium.engine.scheduler import MIXED_ROWS
from trifolium.errors import NumericalError


def make(prompt, mode="ar", tokens=24) -> Request:
    return Request(prompt, decode=DecodeConfig(mode=mode, max_tokens=tokens, drafts="ngram", ignore_eos=True))


def test_rows_that_some_do_not_need_go_to_others(models, oracle):
    """Three AR requests need a row each; the one with drafts takes the rest of the budget."""
    model = models()
    truth = Engine(model).run([make([5])])[0].token_ids
    wanted = make([5], "verified")
    engine = Engine(model, max_rows=18, extra_drafts=lambda r: [oracle(truth, 0, 1.0)] if r is wanted else [])
    for i in range(3):
        engine.add(make([i + 1]))
    engine.add(wanted)
    engine.step()
    batch = engine._scheduler.next()
    rows = [part.plan.rows for part in batch.parts]
    assert rows[:3] == [1, 1, 1] and 18 // 4 < rows[3] <= 15
    assert not any(part.prompt for part in batch.parts)


def test_answers_go_on_while_prompts_are_computed(models, mixed):
    """Every request that decodes gets a token at least every second pass, and passes stay narrow."""
    model = models()
    rng = random.Random(3)
    engine = Engine(model, max_rows=20)
    decoding = [engine.add(make([i], tokens=40)) for i in range(3)]
    for _ in range(4):
        engine.step()
    prompts = [engine.add(make([rng.randrange(VOCAB) for _ in range(140)], tokens=2)) for _ in range(4)]
    while not all(handle.done for handle in prompts):
        before = [(handle._live.passes, engine.stats().rows) for handle in decoding]
        engine.step()
        if not mixed:
            assert engine.stats().rows - before[0][1] <= max(16, 20)
            engine.step()
        else:
            assert engine.stats().rows - before[0][1] <= 20 + MIXED_ROWS
        after = [handle._live.passes for handle in decoding]
        assert all(a > b or h.done for a, (b, _), h in zip(after, before, decoding, strict=True))
    for handle in prompts:
        assert handle.result.token_ids == Engine(model).run([handle._live.request])[0].token_ids


def test_short_prompts_overtake_long_ones_that_still_go_on(models, mixed):
    """One long prompt, and a short one that arrives with every pass: both kinds get through."""
    rng = random.Random(3)
    engine = Engine(models(), max_rows=4)
    long = engine.add(make([rng.randrange(VOCAB) for _ in range(145)], tokens=1))
    short, passes = [], 0
    while not long._live.passes:
        short.append(engine.add(make([rng.randrange(VOCAB) for _ in range(10)], tokens=1)))
        engine.step()
        passes += 1
        assert passes < 60
    assert sum(handle.done for handle in short) >= 2


@pytest.mark.parametrize("count", [1, 7])
def test_a_fault_in_a_pass_costs_few_more_passes(models, answer, count):
    """Halves of the pass run again until the faulty request is alone: passes grow with the logarithm."""
    model = models()
    requests = [make([i + 1], tokens=6) for i in range(8)]
    engine = Engine(model)
    handles = [engine.add(request) for request in requests]
    engine.step()
    with torch.inference_mode():
        for handle in handles[:count]:
            handle._live.state.layers[1].keys[:, 0] = float("inf")
    runs, original = [], engine._runner.run
    engine._runner.run = lambda plans: runs.append(len(plans)) or original(plans)
    engine.step()
    assert runs == [8, 4, 2, 1, 1, 2, 4] if count == 1 else len(runs) == 15
    while engine.step():
        pass
    for i, (handle, request) in enumerate(zip(handles, requests, strict=True)):
        if i < count:
            with pytest.raises(NumericalError):
                _ = handle.result
        else:
            assert handle.result.token_ids == answer(model, request)
    assert engine.stats().state_bytes == 0


def test_a_failed_plan_costs_no_pass_at_all(models, prompts):
    """Planning is each request's own: what fails there doesn't make the others run again."""
    engine = Engine(models())
    handles = [engine.add(make(prompt[:1], tokens=5)) for prompt in prompts(3)]
    engine.step()
    handles[1]._live.tokens.clear()
    before = engine.stats().passes
    while engine.step():
        pass
    assert engine.stats().passes - before == 4
    assert [h._live.error is None for h in handles] == [True, False, True]


def test_cancelled_requests_are_forgotten_at_once(models, prompts):
    engine = Engine(models(), max_running=2)
    handles = [engine.add(make(prompt)) for prompt in prompts(5)]
    engine.step()
    for handle in handles:
        handle.cancel()
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.moved_out, stats.state_bytes) == (0, 0, 0, 0)
    assert not engine.step()
