"""Many requests that arrive at random, share prefixes, make room for one another and are cancelled, on a small budget.

300 by default; TRIFOLIUM_SOAK=10000 runs as many, and also watches the process's memory.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from tiny_engine import VOCAB
from trifolium.config import DecodeConfig, SamplingParams
from trifolium.engine import Engine, Request
from trifolium.model.state import StateSize

COUNT = int(os.environ.get("TRIFOLIUM_SOAK", "300"))
KINDS = [(torch.float32, False), (torch.int8, True)]


def make_requests(rng: random.Random, count: int) -> list[Request]:
    """Prompts that begin alike, in lengths that fall on and off the grid; short and long answers."""
    heads = [[rng.randrange(VOCAB) for _ in range(60)] for _ in range(4)]
    requests = []
    for _ in range(count):
        prompt = rng.choice(heads)[: rng.choice([3, 16, 33, 48, 60])] + [
            rng.randrange(3) for _ in range(rng.randint(1, 9))
        ]
        sampling = SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=rng.randrange(50))
        tokens = rng.choices([1, 2, 4, 8, 70], [6, 8, 8, 8, 16 if COUNT < 5000 else 2])[0]
        requests.append(Request(prompt, sampling, DecodeConfig(mode=rng.choice(["ar", "verified"]), max_tokens=tokens)))
    return requests


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("dtype", "hybrid"), KINDS, ids=["dense-float32", "hybrid-int8"])
def test_nothing_leaks_and_every_answer_is_what_it_is_alone(models, mixed, dtype, hybrid):
    model = models(dtype, hybrid=hybrid)
    rng = random.Random(7)
    pool = make_requests(rng, 30)
    truths = {id(r): Engine(model, max_prefix_bytes=0).run([r])[0].token_ids for r in pool}
    size = StateSize.of(model.config)
    engine = Engine(model, max_running=8, max_rows=6, max_state_bytes=4 * size.at(64))
    left, live, cancelled, early = COUNT // (2 * len(KINDS)), [], 0, 0
    total = left
    while left or live:
        for _ in range(rng.choice([0, 0, 1, 4])):
            busy = left // 20 % 2  # crowds, in which states take all memory, and quiet times, in which prefixes stay
            if left and len(live) < (20 if busy else 2):
                request = rng.choice(pool)
                live.append((engine.add(request), request))
                left -= 1
        if live and rng.random() < 0.03:
            rng.choice(live)[0].cancel()
        engine.step()
        stats = engine.stats()
        assert stats.state_bytes + stats.cached_bytes <= stats.memory
        for handle, request in live:
            if handle.done:
                truth = truths[id(request)]
                tokens = handle.result.token_ids
                was_cancelled = handle.result.finish_reason == "cancelled"
                cancelled += was_cancelled
                assert tokens == (truth[: len(tokens)] if was_cancelled else truth)
        live = [(handle, request) for handle, request in live if not handle.done]
        if not early and left < 0.8 * total and COUNT >= 5000:
            early = resident()
    stats = engine.stats()
    print(f"\n{total} requests, {cancelled} cancelled: {stats}")
    assert stats.preemptions and stats.hits and cancelled
    assert (stats.running, stats.waiting, stats.moved_out, stats.state_bytes) == (0, 0, 0, 0)
    assert not list(engine._scheduler._moved_out._folder.iterdir())
    if early:
        assert resident() - early < 2**25
    engine.forget_prefixes()
    assert (engine.stats().cached_bytes, engine.stats().cached_nodes) == (0, 0)
