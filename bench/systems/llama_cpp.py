"""llama.cpp through xllamacpp's server, in this process: continuous batching over slots, streamed completions.

Variants: "plain", and "ngram" with drafts looked up in the text so far. Drafts from a second model are left out: there
is no smaller model of this family.
"""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import Sequence
from typing import Any

import xllamacpp as native

from .protocol import Answer, Ask, Job, model_file


class Host:
    """Keeps one server at a time."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def variant(self, name: str) -> LlamaCpp:
        return LlamaCpp(name, self._job)


class LlamaCpp:
    """One server with as many slots as requests run at once."""

    def __init__(self, name: str, job: Job) -> None:
        params = native.CommonParams()
        params.model.path = str(model_file(job.model))
        params.n_parallel = job.slots
        params.n_ctx = job.slots * job.positions
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job.threads
        params.cont_batching = True
        params.warmup = True
        params.verbosity = 0
        if name == "ngram":
            params.speculative.types = [native.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        self._server = native.Server(params)
        self.facts: dict[str, Any] = {
            "version": importlib.metadata.version("xllamacpp"),
            "threads": job.threads,
            "slots": job.slots,
            "positions_per_slot": job.positions,
            "drafts": name,
            **self._draft_facts(params, name),
        }

    @staticmethod
    def _draft_facts(params: Any, name: str) -> dict[str, int]:
        found = params.speculative.ngram_simple
        return {"match": found.size_n, "draft_length": found.size_m} if name == "ngram" else {}

    def template_tokens(self, messages: Sequence[dict[str, str]]) -> int | None:
        wish = {"messages": list(messages), "max_tokens": 1, "temperature": 0}
        return int(self._server.handle_chat_completions(wish)["usage"]["prompt_tokens"])

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        answers: list[Answer | Exception | None] = [None] * len(asks)

        def one(i: int) -> None:
            try:
                answers[i] = self._one(asks[i], started)
            except Exception as error:
                answers[i] = error

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asks))]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if faults := [a for a in answers if isinstance(a, Exception)]:
            raise faults[0]
        return [a for a in answers if isinstance(a, Answer)]

    def _one(self, ask: Ask, started: float) -> Answer:
        events: list[tuple[float, dict[str, Any]]] = []
        wish = {
            "prompt": list(ask.prompt), "n_predict": ask.max_tokens, "temperature": 0, "samplers": ["temperature"],
            "stream": True, "ignore_eos": ask.ignore_eos,
        }  # fmt: skip

        def note(event: dict[str, Any]) -> None:
            events.append((time.perf_counter() - started, event))

        self._server.handle_completions(wish, note)
        last = events[-1][1]
        if "timings" not in last:
            raise RuntimeError(f"llama.cpp ended a stream with {last}")
        pieces = [(at, event["choices"][0]) for at, event in events if event.get("choices")]
        text = "".join(piece["text"] for _, piece in pieces)
        stopped = pieces[-1][1]["finish_reason"] == "stop"
        timings = last["timings"]
        tokens = int(timings["predicted_n"]) - stopped
        # One event comes for every token, the end token's and the closing one at the end.
        times = [at for at, piece in pieces if piece["finish_reason"] is None][:tokens]
        arrivals = [(at, 1) for at in times]
        if arrivals and len(times) < tokens:
            arrivals[-1] = (times[-1], 1 + tokens - len(times))
        passes = timings["predicted_n"] - timings.get("draft_n_accepted", 0)
        return Answer(ask.id, text, tokens, "stop" if stopped else "length", arrivals, passes)

    def special(self, kind: str) -> dict[str, Any]:
        raise NotImplementedError(f"llama.cpp has no measurement {kind!r}")
