"""Trifolium, in this process: any mode and dtype, any number of requests in one engine.

What a user would call is used where it exists (`trifolium.load`, `Engine`, `Handle.events`). Only `rows` and `overhead`
look inside: they time the engine's runner and scheduler.
"""

from __future__ import annotations

import gc
import inspect
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

import trifolium
from trifolium.api import LM, split_options
from trifolium.engine import Engine, Request, TextEvent

from .protocol import Answer, Ask, Job

ROWS, FEW_ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128), (1, 16)
BLOCK, DRAFTS, REPEATS, CONTEXT = 8, 7, 9, 200


class Host:
    """One process's models, one for each dtype that is asked for."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        self._job = job
        self._models: dict[str, LM] = {}

    def variant(self, name: str) -> Trifolium:
        """A variant is called dtype-mode, or dtype-mode-drafts."""
        dtype, mode, *drafts = name.split("-")
        if dtype not in self._models:
            self._models[dtype] = trifolium.load(self._job.model, dtype=dtype, progress=False)  # type: ignore[arg-type]
        options = {"mode": mode, **({"drafts": drafts[0]} if drafts else {})}
        return Trifolium(self._models[dtype], options, self._job)


class Trifolium:
    """One mode."""

    def __init__(self, lm: LM, options: dict[str, str], job: Job) -> None:
        self._lm, self._options, self._job = lm, options, job
        self._engine = self._new_engine()
        self.facts = {
            "version": trifolium.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "dtype": lm.dtype,
            **options,
        }

    def template_tokens(self, messages: Sequence[dict[str, str]]) -> int | None:
        return len(self._lm.encode(list(messages)))

    def _new_engine(self) -> Engine:
        known = inspect.signature(Engine).parameters
        limits: dict[str, Any] = {"max_running": self._job.slots} if "max_running" in known else {}
        return Engine(self._lm.model, self._lm.tokenizer, **limits)

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        if len(asks) == 1 and asks[0].id == self._job.warm_up.id:
            self._engine = self._new_engine()  # what an engine keeps of one task must not help the next
            gc.collect()
        engine, arrivals = self._engine, defaultdict[int, list[tuple[float, int]]](list)
        started = time.perf_counter()
        handles = []
        for ask in asks:
            wishes = {**self._options, "max_tokens": ask.max_tokens, "ignore_eos": ask.ignore_eos}
            handles.append(engine.add(Request(ask.prompt, *split_options(wishes))))
        left = True
        while left:
            left = engine.step()
            now = time.perf_counter() - started
            for i, handle in enumerate(handles):
                new = sum(len(event.token_ids) for event in handle.events() if isinstance(event, TextEvent))
                if new:
                    arrivals[i].append((now, new))
        results = [handle.result for handle in handles]
        return [
            Answer(ask.id, r.text, r.tokens, "stop" if r.finish_reason == "stop" else "length", arrivals[i], r.passes)
            for i, (ask, r) in enumerate(zip(asks, results, strict=True))
        ]

    def special(self, kind: str) -> dict[str, Any]:
        if kind == "rows":
            with torch.inference_mode():
                return {"rows": pass_times(self._lm, *((FEW_ROWS, 1) if self._job.quick else (ROWS, REPEATS)))}
        return {"overhead": self._overhead()}

    def _overhead(self) -> dict[str, Any]:
        """Shares of the steps' time by part of the engine, while as many requests run as there are slots."""
        engine, seconds = self._engine, defaultdict[str, float](float)
        parts = {"_runner": ("run", "prefill"), "_proposer": ("propose",), "_scheduler": ("next", "retire")}
        for part, names in parts.items():
            target = getattr(engine, part)
            for name in names:
                setattr(target, name, timed(getattr(target, name), part.strip("_"), seconds))
        words = self._job.warm_up.prompt
        sampling, decode = split_options({**self._options, "max_tokens": 24, "ignore_eos": True})
        for i in range(self._job.slots):
            engine.add(Request([*words[: 1 + i % (len(words) - 1)], *words], sampling, decode))
        steps, started, left = 0, time.perf_counter(), True
        while left:
            left = engine.step()
            steps += 1
        whole = time.perf_counter() - started
        return {"requests": self._job.slots, "steps": steps, "ms_per_step": 1e3 * whole / steps,
                **{f"{part}_share": spent / whole for part, spent in seconds.items()}}  # fmt: skip


def timed(function: Callable[..., Any], part: str, seconds: dict[str, float]) -> Callable[..., Any]:
    """The function, with its time added to `seconds[part]`."""

    def call(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            seconds[part] += time.perf_counter() - started

    return call


def pass_times(lm: LM, counts: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Milliseconds of one request's pass by its number of rows: commit rows alone, and drafts with blocks of masks."""
    from trifolium.engine.plan import Plan
    from trifolium.engine.runner import Runner
    from trifolium.model import MASK

    runner, state = Runner(lm.model), lm.model.new_state()
    size = lm.model.config.vocab_size
    tokens = [(31 * i * i + 7 * i) % size for i in range(CONTEXT + max(counts))]
    runner.prefill(state, tokens[:CONTEXT])
    plans: dict[tuple[int, str], Plan] = {}
    for rows in counts:
        plans[rows, "plain_ms"] = Plan(tuple(tokens[CONTEXT : CONTEXT + rows]), rows)
        commit = min(rows, 1 + DRAFTS)
        if rows > commit and lm.model.adapter is not None:
            whole, rest = divmod(rows - commit, BLOCK)
            sizes = [BLOCK] * whole + [rest] * (rest > 0)
            blocks = tuple((1 + i % commit, (MASK,) * m) for i, m in enumerate(sizes))
            plans[rows, "fused_ms"] = Plan(tuple(tokens[CONTEXT : CONTEXT + commit]), commit, blocks)
    times = defaultdict[tuple[int, str], list[float]](list)
    for repeat in range(repeats + 1):
        for key, plan in plans.items():
            started = time.perf_counter()
            runner.run([(state, plan)])
            if repeat:  # the first one warms up
                times[key].append(1e3 * (time.perf_counter() - started))
    return [
        {"rows": rows, **{form: statistics.median(times[rows, form]) for n, form in plans if n == rows}}
        for rows in counts
    ]
