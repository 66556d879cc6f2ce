"""Memory: what can't fit is refused, what doesn't fit now waits or makes room, and every answer stays what it was."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import pytest
import torch

from trifolium.config import DecodeConfig, SamplingParams
from trifolium.engine import Engine, Request
from trifolium.engine.memory import MovedOut, available_memory
from trifolium.errors import PromptError, TrifoliumError, UsageError
from trifolium.model.state import StateSize


def make(prompt, mode="verified", tokens=70, seed=0) -> Request:
    sampling = SamplingParams(temperature=1.0, seed=seed)
    return Request(prompt, sampling, DecodeConfig(mode=mode, max_tokens=tokens, ignore_eos=True))


def drain(engine: Engine) -> None:
    """Step to the end; the budget holds after every step."""
    while engine.step():
        stats = engine.stats()
        assert stats.state_bytes + stats.cached_bytes <= stats.memory
        running = engine._scheduler._running
        assert stats.state_bytes == sum(layer.nbytes for job in running for layer in job.live.state.layers)


def test_the_default_budget_is_a_share_of_what_is_free(models):
    free = available_memory(torch.device("cpu"))
    assert 2**26 < free < 2**50
    assert 0.2 * free < Engine(models()).stats().memory < 0.8 * free


def test_what_can_never_fit_is_refused_and_says_what_to_do(models):
    model = models()
    size = StateSize.of(model.config)
    engine = Engine(model, max_state_bytes=size.at(64))
    with pytest.raises(UsageError, match="lower max_tokens, or allow more"):
        engine.add(make([1] * 30, tokens=35))
    with pytest.raises(PromptError, match="shorten the prompt"):
        engine.add(make([1] * 64, tokens=1))
    assert engine.run([make([1] * 30, tokens=34)])[0].tokens == 34
    assert not engine.step() and engine.stats().waiting == 0


@pytest.mark.parametrize("hybrid", [False, True], ids=["dense", "hybrid"])
def test_requests_wait_for_memory_in_order(models, prompts, answer, hybrid):
    """Room for two states: never more run, whoever came first starts first, and nobody is moved out."""
    model = models(hybrid=hybrid)
    requests = [make(prompt, tokens=15) for prompt in prompts(6)]
    engine = Engine(model, max_state_bytes=2 * StateSize.of(model.config).at(64), max_prefix_bytes=0)
    handles = [engine.add(request) for request in requests]
    assert engine.stats().waiting == 6 and engine.stats().state_bytes == 0
    started: list[int] = []
    while engine.step():
        assert engine.stats().running <= 2
        started += [h.id for h in handles if h._live.passes + h._live.prompt_passes and h.id not in started]
    assert started == sorted(started)
    assert engine.stats().preemptions == 0
    for handle, request in zip(handles, requests, strict=True):
        assert handle.result.token_ids == answer(model, request)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("hybrid", [False, True], ids=["dense", "hybrid"])
def test_making_room_loses_nothing(models, prompts, answer, mixed, dtype, hybrid):
    """Answers outgrow the memory: the youngest are moved out and come back, and every answer is what it is alone."""
    model = models(dtype, hybrid=hybrid)
    size = StateSize.of(model.config)
    modes = ["ar", "verified"]
    requests = [make(prompt, modes[i % 2], seed=i) for i, prompt in enumerate(prompts(5, seed=2))]
    engine = Engine(model, max_state_bytes=size.at(64) * 3 + size.cell * 64, max_rows=10)
    handles = [engine.add(request) for request in requests]
    drain(engine)
    assert engine.stats().preemptions >= 2
    finished = sorted(handles, key=lambda h: h._live.passes + h.id * 1000)
    assert [h.id for h in finished] == [0, 1, 2, 3, 4]
    for handle, request in zip(handles, requests, strict=True):
        assert handle.result.token_ids == answer(model, request)
    assert engine.stats().state_bytes == 0


def moved_out(model, count: int = 2) -> tuple[Engine, list]:
    """An engine that has moved out its youngest request, and the handles."""
    size = StateSize.of(model.config)
    engine = Engine(model, max_state_bytes=size.at(128) + size.at(64), max_rows=10, max_prefix_bytes=0)
    handles = [engine.add(make([3 + i] * 20, "ar", 80)) for i in range(count)]
    while not engine.stats().moved_out:
        assert engine.step()
    return engine, handles


def test_a_cancelled_request_leaves_no_file(models):
    engine, (first, second) = moved_out(models())
    folder = engine._scheduler._moved_out._folder
    assert [path.suffix for path in folder.iterdir()] == [".safetensors"]
    assert second._live.state.nbytes == 0
    second.cancel()
    assert second.result.finish_reason == "cancelled" and second.result.tokens > 0
    assert not list(folder.iterdir()) and engine.stats().moved_out == 0
    drain(engine)
    assert first.result.tokens == 80


def test_files_go_with_the_engine(models):
    engine, handles = moved_out(models())
    folder = engine._scheduler._moved_out._folder
    assert folder.is_dir()
    del engine, handles
    gc.collect()
    assert not folder.exists()


def test_without_a_disk_to_move_to_a_request_fails_alone(models, monkeypatch, answer):
    model = models()
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere/at/all")
    size = StateSize.of(model.config)
    engine = Engine(model, max_state_bytes=size.at(128) + size.at(64), max_rows=10)
    requests = [make([3 + i] * 20, "ar", 80) for i in range(2)]
    first, second = (engine.add(request) for request in requests)
    drain(engine)
    assert first.result.token_ids == answer(model, requests[0])
    with pytest.raises(TrifoliumError, match="TMPDIR"):
        _ = second.result
    assert engine.stats().state_bytes == 0


def test_a_file_that_is_gone_ends_its_request_alone(models):
    engine, (first, second) = moved_out(models())
    for path in Path(engine._scheduler._moved_out._folder).iterdir():
        path.write_bytes(b"damaged")
    drain(engine)
    assert first.result.tokens == 80
    with pytest.raises(Exception, match="header"):
        _ = second.result
    assert engine.stats().moved_out == 0 and not len(engine._scheduler._moved_out)


def test_a_state_comes_back_bit_for_bit(models):
    for hybrid in (False, True):
        engine, (_, handle) = moved_out(models(hybrid=hybrid))
        store, state = engine._scheduler._moved_out, handle._live.state
        length, capacity = store.positions(handle.id)
        store.take(handle.id, state, capacity)
        assert (state.length, state.capacity) == (length, capacity)
        before = state.cells(0, length), state.snapshot()
        again = MovedOut()
        again.put(7, state)
        assert state.nbytes == 0 and len(again) == 1
        again.take(7, state, capacity)
        after = state.cells(0, length), state.snapshot()
        tensors = [[t for parts in side for layer in parts for t in layer] for side in (before, after)]
        assert all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))
