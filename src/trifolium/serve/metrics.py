"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..engine import Result, Stats

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters of finished answers, and gauges that are read from the engines when someone looks."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("trifolium_requests", "HTTP requests", ["path", "status"], registry=registry)
        self._answers = Counter(
            "trifolium_answers", "Answers that ended", ["model", "mode", "finish_reason"], registry=registry
        )
        self._tokens = Counter("trifolium_tokens", "Tokens of answers", ["model", "mode"], registry=registry)
        self._passes = Counter(
            "trifolium_answer_passes", "Decoding passes, each counted for every answer in it", ["model", "mode"],
            registry=registry,
        )  # fmt: skip
        self._accepted = Counter(
            "trifolium_accepted_drafts", "Drafts that turned out right", ["model", "source"], registry=registry
        )
        self._prompt = Counter("trifolium_prompt_tokens", "Tokens of prompts", ["model", "from"], registry=registry)
        self._seconds = Histogram(
            "trifolium_answer_seconds", "Prompt and decoding time of answers", ["model", "mode"], buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self._engine = Gauge(
            "trifolium_engine", "What an engine is doing (Engine.stats)", ["model", "what"], registry=registry
        )

    def request(self, path: str, status: int) -> None:
        """An HTTP request was answered. `path`: a route's, so that there are few."""
        self._requests.labels(path, str(status)).inc()

    def answer(self, result: Result) -> None:
        """An answer ended."""
        labels = (result.model, result.mode)
        self._answers.labels(*labels, result.finish_reason).inc()
        self._tokens.labels(*labels).inc(result.tokens)
        self._passes.labels(*labels).inc(result.passes)
        self._seconds.labels(*labels).observe(result.seconds + result.prompt_seconds)
        for source, count in result.accepted_by.items():
            self._accepted.labels(result.model, source).inc(count)
        self._prompt.labels(result.model, "cache").inc(result.cached_tokens)
        self._prompt.labels(result.model, "computed").inc(result.prompt_tokens - result.cached_tokens)

    def text(self, stats: Mapping[str, Stats]) -> bytes:
        """The page of all counters, with each model's engine as it is now."""
        for model, now in stats.items():
            for what, value in vars(now).items():
                self._engine.labels(model, what).set(value)
            self._engine.labels(model, "hit_rate").set(now.hit_rate)
        return generate_latest(self._registry)
