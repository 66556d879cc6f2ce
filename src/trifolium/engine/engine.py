"""The engine: many requests, one pass after another. `step` is the whole of it: schedule, run, apply."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch

from ..errors import UnsupportedModelError, UsageError
from ..model import Transformer
from ..text import Tokenizer
from .canvas import DiffusionDecoder
from .commit import VerifiedDecoder
from .drafts import DraftBook, DraftSource, NgramDrafts, PreviewDrafts
from .events import Event, Result
from .plan import Decoder, Outcome
from .proposals import Ask, Proposer
from .request import Live, Request
from .runner import Runner
from .scheduler import Batch, Job, Scheduler

MAX_ROWS = 96
"""Rows of a decoding pass, for all requests together: with fast int8, so many cost little more than one."""

ExtraDrafts = Callable[[Request], Sequence[DraftSource]]


class Handle:
    """A caller's hold on a request: poll `events` between steps, `cancel` it, take its `result` once `done`."""

    def __init__(self, live: Live) -> None:
        self._live = live

    @property
    def id(self) -> int:
        """Counts requests from 0, in order of arrival."""
        return self._live.id

    @property
    def done(self) -> bool:
        """Whether there is a result or an error."""
        return self._live.result is not None or self._live.error is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """What will be done otherwise than asked."""
        return self._live.notes

    def events(self) -> Iterator[Event]:
        """Takes the events that came since the last call."""
        while self._live.events:
            yield self._live.events.popleft()

    def cancel(self) -> None:
        """End the request before the next pass; its result is what it has so far."""
        if not self._live.done:
            self._live.finish_reason = "cancelled"
            self._live.report()

    @property
    def result(self) -> Result:
        """The finished answer. Raises what made the request fail, or UsageError while it runs."""
        if self._live.error is not None:
            raise self._live.error
        if self._live.result is None:
            raise UsageError("the request is still running: call step() until the handle is done")
        return self._live.result


class Engine:
    """Decodes many requests with one packed model. Not thread-safe: one caller adds and steps.

    With int8 and float32 products, `verified` and `ar` answers don't depend, to the bit, on what else is running.
    `diffusion` answers may: the adapter's low-rank products on preview rows round by the number of rows.

    `tokenizer` None: answers have no text, and only `eos_ids` end them. `max_running`: how many requests share passes;
    others wait. `max_rows`: row budget of a decoding pass. `extra_drafts`: further draft sources for a request.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None = None,
        *,
        eos_ids: frozenset[int] | None = None,
        max_running: int = 16,
        max_rows: int = MAX_ROWS,
        extra_drafts: ExtraDrafts | None = None,
    ) -> None:
        if model.adapter is not None and model.adapter.config.prediction_offset != 1:
            raise UnsupportedModelError("the adapter predicts without the next-token offset: not supported yet")
        self.model = model
        self.tokenizer = tokenizer
        self._eos_ids = eos_ids if eos_ids is not None or tokenizer is None else tokenizer.eos_ids
        self._max_rows = max_rows
        self._extra_drafts = extra_drafts
        self._runner = Runner(model)
        self._proposer = Proposer(model)
        self._scheduler = Scheduler(max_running)
        self._count = 0

    def add(self, request: Request) -> Handle:
        """Queue a request. Raises PromptError or UsageError if it can't be served."""
        live = Live(
            self._count,
            request,
            state=self.model.new_state(),
            vocab_size=self.model.config.vocab_size,
            max_positions=self.model.config.max_positions,
            tokenizer=self.tokenizer,
            eos_ids=self._eos_ids or frozenset(),
        )
        self._scheduler.add(Job(live, self._decoder(live)))
        self._count += 1
        return Handle(live)

    def step(self) -> bool:
        """One pass. Returns whether requests are left."""
        started = time.perf_counter()
        with torch.inference_mode():
            batch = self._scheduler.next()
            if batch is not None:
                self._apply(batch, self._run(batch))
                self._settle(batch, time.perf_counter() - started)
        self._scheduler.retire()
        return not self._scheduler.idle

    def _run(self, batch: Batch) -> list[Outcome | None]:
        """The pass; an outcome for each job, or None where its part failed."""
        try:
            if batch.chunk:
                self._runner.prefill(batch.jobs[0].live.state, batch.chunk)
                return [None]
            share = max(1, self._max_rows // len(batch.jobs))
            plans = [(job.live.state, job.decoder.plan(share)) for job in batch.jobs]
            return list(self._runner.run(plans))
        except Exception as error:
            if len(batch.jobs) == 1:
                batch.jobs[0].live.error = error
                return [None]
        # Nothing was committed: run each request alone, so that only the faulty one fails.
        return [outcome for job in batch.jobs for outcome in self._run(Batch((job,)))]

    def _apply(self, batch: Batch, outcomes: Sequence[Outcome | None]) -> None:
        """Accept, emit, and propose the next drafts of all requests at once."""
        asking: list[tuple[Job, Ask]] = []
        for job, outcome in zip(batch.jobs, outcomes, strict=True):
            if outcome is not None:
                job.live.experts_read += outcome.experts_read
                try:
                    ask = job.decoder.apply(outcome)
                except Exception as error:
                    job.live.error = error
                else:
                    if ask is not None:
                        asking.append((job, ask))
        self._propose(asking)

    def _propose(self, asking: Sequence[tuple[Job, Ask]]) -> None:
        try:
            proposals = self._proposer.propose([ask for _, ask in asking])
        except Exception as error:
            if len(asking) == 1:
                asking[0][0].live.error = error
                return
            for one in asking:
                self._propose([one])
            return
        for (job, _), draft in zip(asking, proposals, strict=True):
            job.decoder.receive(draft)

    @staticmethod
    def _settle(batch: Batch, seconds: float) -> None:
        """Count the pass for each of its requests, and tell those who watch."""
        for job in batch.jobs:
            live = job.live
            if batch.chunk:
                live.prompt_passes += 1
                live.prompt_seconds += seconds
            else:
                live.passes += 1
                live.seconds += seconds
            live.report()

    def _decoder(self, live: Live) -> Decoder:
        """How the request decodes; raises UsageError for what the model can't do."""
        decode, adapter = live.request.decode, self.model.adapter
        if decode.mode == "diffusion":
            if adapter is None:
                raise UsageError(
                    "diffusion needs an adapter, and this model has none: make one with `trifolium convert`, "
                    "name one with --adapter, or use --mode verified"
                )
            return DiffusionDecoder(live, self._proposer, decode.block_size or adapter.config.block_size)
        sources: list[DraftSource] = []
        previews: PreviewDrafts | None = None
        block = 0
        drafts = "none" if decode.mode == "ar" else decode.drafts
        if drafts in ("preview", "both") and adapter is None:
            drafts = "ngram"
            live.notes += ("this model has no adapter: drafts come from n-grams of the text only",)
        if drafts in ("preview", "both") and adapter is not None:
            previews, block = PreviewDrafts(), decode.block_size or adapter.config.block_size
            sources.append(previews)
        if drafts in ("ngram", "both"):
            sources.append(NgramDrafts(live.request.prompt))
        if drafts != "none" and self._extra_drafts is not None:
            sources += self._extra_drafts(live.request)
        if drafts != "none" and not self.model.exact:
            live.notes += ("products in this dtype round by the number of rows: verified may differ from ar in places",)
        live.drafts = drafts
        return VerifiedDecoder(live, DraftBook(sources), previews, block)

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Answer all requests; results in the same order. Raises the first request's error, if one failed."""
        handles = [self.add(request) for request in requests]
        while self.step():
            pass
        return [handle.result for handle in handles]
