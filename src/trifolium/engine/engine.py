"""The engine: many requests, one pass after another. `step` is the whole of it: schedule, run, apply."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..constrain import Compiler, Thoughts
from ..errors import PromptError, UnsupportedModelError, UsageError
from ..model import Transformer
from ..model.state import StateSize
from ..text import Tokenizer
from .canvas import DiffusionDecoder
from .commit import VerifiedDecoder
from .costs import PassCosts
from .drafts import Calibration, DraftBook, DraftSource, NgramDrafts, PreviewDrafts
from .events import Result
from .fitting import ForcedDrafts, OptionDrafts, fitted
from .handle import Handle
from .memory import STATE_SHARE, available_memory
from .plan import Decoder, Outcome, Plan
from .proposals import Ask, Proposer
from .request import Live, Request
from .runner import Runner
from .scheduler import Batch, Job, Limits, Part, Scheduler
from .scores import ScoreDecoder, ScoreHandle, ScoreRequest, ScoreTree, as_request
from .skeleton import Slots
from .structured import StructuredDecoder

MAX_ROWS = 96
"""Rows of a decoding pass, for all requests together: with fast int8, so many cost little more than one."""

MAX_RUNNING = 64
"""Requests that share passes, as far as their states fit into memory."""

TRY_OUT = (1, 8)
"""Rows of the passes that are timed before the first request with drafts."""

PREFIX_SHARE = 0.5
"""Share of the memory for states that cached prefixes may take, as long as running requests don't need it."""

ExtraDrafts = Callable[[Request], Sequence[DraftSource]]


@dataclass(frozen=True)
class Stats:
    """What an engine is doing, and has done since it started.

    `running`, `waiting`, `moved_out`: requests in memory, not yet admitted, and on disk for want of memory. `passes`
    held `rows` rows together. `state_bytes` of running requests and `cached_bytes` in `cached_nodes` nodes of the
    prefix cache are at most `memory`. Of `lookups` prompts, one for each admitted request, `hits` found a prefix;
    `reused_tokens` of `prompt_tokens` weren't computed. `preemptions`: how often a request had to make room.
    """

    running: int
    waiting: int
    moved_out: int
    passes: int
    rows: int
    memory: int
    state_bytes: int
    cached_bytes: int
    cached_nodes: int
    lookups: int
    hits: int
    prompt_tokens: int
    reused_tokens: int
    preemptions: int

    @property
    def hit_rate(self) -> float:
        """Share of prompts that found a prefix."""
        return self.hits / self.lookups if self.lookups else 0.0


class Engine:
    """Decodes many requests with one packed model. Not thread-safe: one caller adds and steps.

    With int8 and float32 products, `verified` and `ar` answers don't depend, to the bit, on what else is running, on
    cached prefixes, or on having been moved out. `diffusion` answers may: the adapter's low-rank products on preview
    rows round by the number of rows.

    `tokenizer` None: answers have no text, and only `eos_ids` end them. `max_running`: how many requests share passes;
    others wait. `max_rows`: row budget of a decoding pass, of which requests take what is worth its time
    (or all that may save a pass: `DecodeConfig.free_rows`). `max_state_bytes`: for all requests' states and the prefix
    cache together; half of what the machine has left, unless given. Weights and a pass's own tensors come on top.
    `max_prefix_bytes`: for the prefix cache, 0 for none; half of that, unless given. The cache is this engine's own:
    model, dtype and adapter stay what they are. `extra_drafts`: further draft sources for a request.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer | None = None,
        *,
        eos_ids: frozenset[int] | None = None,
        max_running: int = MAX_RUNNING,
        max_rows: int = MAX_ROWS,
        max_state_bytes: int | None = None,
        max_prefix_bytes: int | None = None,
        extra_drafts: ExtraDrafts | None = None,
    ) -> None:
        if model.adapter is not None and model.adapter.config.prediction_offset != 1:
            raise UnsupportedModelError("the adapter predicts without the next-token offset: not supported yet")
        self.model = model
        self.tokenizer = tokenizer
        self._eos_ids = eos_ids if eos_ids is not None or tokenizer is None else tokenizer.eos_ids
        self._extra_drafts = extra_drafts
        self._runner = Runner(model)
        self._proposer = Proposer(model)
        self._size = StateSize.of(model.config)
        if max_state_bytes is None:
            max_state_bytes = int(available_memory(model.embed.weight.device) * STATE_SHARE)
        if max_prefix_bytes is None:
            max_prefix_bytes = int(max_state_bytes * PREFIX_SHARE)
        self._limits = Limits(max_running, max_rows, max_state_bytes, max_prefix_bytes, model.row_exact)
        self._costs = PassCosts()
        self._accepted: list[float] = []
        self._accepted_constrained: list[float] = []
        self._compiler: Compiler | None = None
        self._calibration = Calibration()
        self._scheduler = Scheduler(self._limits, self._size, self._costs)
        self._count = self._passes = self._rows = 0

    def add(self, request: Request) -> Handle:
        """Queue a request. Raises PromptError or UsageError if it can't be served, ConstraintError among them."""
        live = self._live(request)
        if live.done:  # the constraint allows the empty answer only
            live.report()
            self._count += 1
        else:
            self._queue(live, self._decoder(live))
        return Handle(live, self._scheduler.drop)

    def score(self, request: ScoreRequest) -> ScoreHandle:
        """Queue continuations to be scored. Raises PromptError or UsageError if they can't be.

        They share passes with everything else that runs; the prompt is taken from the prefix cache as far as it is
        there, and computed once for all of them.
        """
        request.check(self.model.config.vocab_size)
        tree = ScoreTree(request.continuations)
        live = self._live(as_request(request, tree, self.model.config.max_positions))
        decoder = ScoreDecoder(live, tree)
        self._queue(live, decoder)
        return ScoreHandle(live, self._scheduler.drop, decoder)

    def _live(self, request: Request) -> Live:
        decode, constraint = request.decode, request.constraint
        request.check(self.model.config.vocab_size, self.model.config.max_positions, self.tokenizer is not None)
        guide = None if constraint is None else self.compiler.guide(constraint, may_end=not decode.ignore_eos)
        if decode.thinking_budget is not None and self.tokenizer is not None:
            thoughts = Thoughts(decode.thinking_budget, opened=request.thinking)
            guide = self.compiler.thoughtful(thoughts, guide, may_end=not decode.ignore_eos)
        return Live(
            self._count,
            request,
            state=self.model.new_state(),
            vocab_size=self.model.config.vocab_size,
            max_positions=self.model.config.max_positions,
            tokenizer=self.tokenizer,
            eos_ids=self._eos_ids or frozenset(),
            guide=guide,
        )

    def _queue(self, live: Live, decoder: Decoder) -> None:
        job = Job(live, decoder, np.array(live.tokens[:-1], np.int32))
        self._check_memory(job)
        self._scheduler.add(job)
        self._count += 1

    @property
    def compiler(self) -> Compiler:
        """What compiles this engine's constraints, and keeps them. Safe to use from other threads.

        Raises UsageError without a tokenizer.
        """
        if self._compiler is None:
            if self.tokenizer is None:
                raise UsageError("constraints need a tokenizer")
            self._compiler = Compiler(self.tokenizer, self._eos_ids or frozenset(), self.model.config.vocab_size)
        return self._compiler

    def _check_memory(self, job: Job) -> None:
        """Raises PromptError or UsageError if the request can't be held even when nothing else is."""
        memory, live = self._limits.memory, job.live
        shortest, longest = self._size.at(live.prompt_tokens + 1), self._size.at(job.most)
        if longest <= memory:
            return
        limit = f"and the engine may hold {memory / 2**20:,.1f} MiB of states (max_state_bytes)"
        if shortest > memory:
            raise PromptError(
                f"the prompt of {live.prompt_tokens} tokens needs {shortest / 2**20:,.1f} MiB, {limit}: "
                "shorten the prompt, or allow more"
            )
        raise UsageError(
            f"a prompt of {live.prompt_tokens} tokens with an answer of up to {live.limit} needs "
            f"{longest / 2**20:,.1f} MiB, {limit}: lower max_tokens, or allow more"
        )

    def step(self) -> bool:
        """One pass. Returns whether requests are left."""
        started = time.perf_counter()
        with torch.inference_mode():
            batch = self._scheduler.next()
            if batch.parts:
                asking = self._apply(batch.parts, self._run(batch.parts, batch.prefill))
                decided = time.perf_counter()
                self._propose(asking)
                self._settle(batch, decided - started, time.perf_counter() - decided, len(asking))
        self._scheduler.retire()
        return not self._scheduler.idle

    def stats(self) -> Stats:
        """What the engine is doing, and has done."""
        scheduler = self._scheduler
        running, waiting, moved = scheduler.counts
        return Stats(
            running=running,
            waiting=waiting,
            moved_out=moved,
            passes=self._passes,
            rows=self._rows,
            memory=self._limits.memory,
            state_bytes=scheduler.state_bytes,
            cached_bytes=scheduler.prefixes.nbytes,
            cached_nodes=len(scheduler.prefixes),
            lookups=scheduler.lookups,
            hits=scheduler.hits,
            prompt_tokens=scheduler.looked_up,
            reused_tokens=scheduler.reused,
            preemptions=scheduler.preemptions,
        )

    def forget_prefixes(self) -> None:
        """Empty the prefix cache: the next prompts are computed from nothing."""
        self._scheduler.prefixes.clear()

    def _run(self, parts: Sequence[Part], prefill: bool = False) -> list[Outcome | None]:
        """The pass; an outcome for each part, or None where it failed."""
        try:
            if prefill:
                state, chunk = parts[0].job.live.state, parts[0].plan.commit
                self._runner.prefill(state, chunk)
                return [None]
            outcomes = list[Outcome | None](self._runner.run([(part.job.live.state, part.plan) for part in parts]))
        except Exception as error:
            if len(parts) == 1:
                parts[0].job.live.fail(error)
                return [None]
            # Nothing was committed: run both halves again, and so on, until only the faulty request fails.
            middle = len(parts) // 2
            return [*self._run(parts[:middle]), *self._run(parts[middle:])]
        return outcomes

    def _apply(self, parts: Sequence[Part], outcomes: Sequence[Outcome | None]) -> list[tuple[Job, Ask]]:
        """Accept, emit, keep what others may start from; returns the previews that came true."""
        asking: list[tuple[Job, Ask]] = []
        for part, outcome in zip(parts, outcomes, strict=True):
            job, live = part.job, part.job.live
            if live.done:
                continue
            try:
                if outcome is not None and part.prompt:
                    live.state.accept(len(part.plan.commit))
                elif outcome is not None:
                    live.experts_read += outcome.experts_read
                    ask = job.decoder.apply(outcome)
                    if ask is not None:
                        asking.append((job, ask))
                if part.prompt or live.done:
                    self._scheduler.keep(job)
            except Exception as error:
                live.fail(error)
        return asking

    def _propose(self, asking: Sequence[tuple[Job, Ask]]) -> None:
        """The next drafts of all requests at once."""
        try:
            proposals = self._proposer.propose([ask for _, ask in asking])
        except Exception as error:
            if len(asking) == 1:
                asking[0][0].live.fail(error)
                return
            for one in asking:
                self._propose([one])
            return
        for (job, _), draft in zip(asking, proposals, strict=True):
            job.decoder.receive(draft)

    def _settle(self, batch: Batch, seconds: float, proposing: float, proposals: int) -> None:
        """Count the pass for each of its requests, and tell those who watch."""
        rows = sum(part.plan.rows for part in batch.parts)
        self._passes += 1
        self._rows += rows
        decoding = sum(part.plan.rows for part in batch.parts if not part.prompt and part.plan.decodes)
        if decoding:
            tokens = sum(part.job.live.fresh for part in batch.parts)
            self._costs.observe(rows, seconds, tokens, decoding / rows, proposals, proposing)
        seconds += proposing
        for part in batch.parts:
            live = part.job.live
            if part.prompt:
                live.prompt_passes += 1
                live.prompt_seconds += seconds
            else:
                live.passes += 1
                live.seconds += seconds
            live.report()

    def _try_out(self) -> None:
        """Time passes of one and of a few rows, so that the first request knows already what rows cost."""
        with torch.inference_mode():
            for rows in TRY_OUT:
                state, plan = self.model.new_state(), Plan((0,) * rows, rows)
                times = []
                for _ in range(2):
                    started = time.perf_counter()
                    self._runner.run([(state, plan)])
                    times.append(time.perf_counter() - started)
                self._costs.observe(rows, min(times), 0, share=0.0)

    def _decoder(self, live: Live) -> Decoder:
        """How the request decodes; raises UsageError for what the model can't do."""
        decode, adapter = live.request.decode, self.model.adapter
        if decode.mode == "diffusion":
            if adapter is None:
                raise UsageError(
                    "diffusion needs an adapter, and this model has none: make one with `trifolium convert`, "
                    "name one with --adapter, or use --mode verified"
                )
            block = decode.block_size or adapter.config.block_size
            if live.guide is not None and live.tokenizer is not None:
                slots = Slots(live.guide, live.tokenizer)
                return StructuredDecoder(live, live.guide, slots, self._proposer, block)
            return DiffusionDecoder(live, self._proposer, block)
        sources: list[DraftSource] = []
        previews: PreviewDrafts | None = None
        block = 0
        drafts = "none" if decode.mode == "ar" and decode.drafts != "forced" else decode.drafts
        if drafts in ("preview", "both") and adapter is None:
            drafts = "ngram"
            live.notes += ("this model has no adapter: drafts come from n-grams of the text only",)
        if drafts in ("preview", "both") and adapter is not None:
            # Under a constraint previews tend to be worth something else.
            accepted = self._accepted if live.guide is None else self._accepted_constrained
            previews, block = PreviewDrafts(accepted), decode.block_size or adapter.config.block_size
            sources.append(previews)
            self._proposer.prepare()
        if drafts in ("ngram", "both"):
            sources.append(NgramDrafts(live.request.prompt))
        if drafts != "none" and live.guide is not None:
            sources.append(ForcedDrafts(live.guide))
        options = None
        if drafts not in ("none", "forced") and live.guide is not None and live.tokenizer is not None:
            sources.append(options := OptionDrafts(live.guide, live.tokenizer))
        if drafts not in ("none", "forced") and self._extra_drafts is not None:
            sources += self._extra_drafts(live.request)
        if drafts != "none" and not self.model.exact:
            live.notes += ("products in this dtype round by the number of rows: verified may differ from ar in places",)
        live.drafts = drafts
        if sources and not self._costs.known and not decode.free_rows:
            self._try_out()
        book = DraftBook(sources, self._calibration, None if live.guide is None else fitted(live.guide))
        return VerifiedDecoder(live, book, previews, block, options)

    def run(self, requests: Sequence[Request]) -> list[Result]:
        """Answer all requests; results in the same order. Raises the first request's error, if one failed."""
        handles = [self.add(request) for request in requests]
        while self.step():
            pass
        return [handle.result for handle in handles]
