"""Which rows make up the next pass, and whose states are in memory for it.

First come, first served: the oldest request is admitted first, nobody overtakes a request that waits for memory, and
the youngest makes room where memory runs short. Nothing here changes what a request answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import TrifoliumError
from ..model.state import StateSize
from .costs import Budget, PassCosts
from .memory import MovedOut
from .plan import Decoder, Plan
from .prefixes import PrefixCache, Tokens
from .request import Live

CHUNK = 256
"""Prompts are cut at multiples of this position, whatever else runs: a chunk's rounding depends on nothing else.

Where rows are exact in any company (`Transformer.row_exact`) it is only the most that a pass takes of prompts.
"""

MIXED_ROWS = 64
"""Rows that a pass may have for prompts beside a full budget of decoding rows: how long answers wait is bounded."""


@dataclass(eq=False)
class Job:
    """A request and how it decodes. `prompt`: what has to be prefilled, all but the last token, which decoding does."""

    live: Live
    decoder: Decoder
    prompt: Tokens
    rows: int = 0
    """Rows of its last plan."""
    branch: int = 0
    """Where other prompts are known to go on differently: worth a snapshot."""
    most: int = field(init=False)
    """Positions that its state may ever need room for."""

    def __post_init__(self) -> None:
        self.most = self.live.prompt_tokens + self.live.limit

    @property
    def prompt_left(self) -> int:
        """Prompt tokens still to be prefilled."""
        return max(0, len(self.prompt) - self.live.state.length)


@dataclass(frozen=True)
class Part:
    """One request's rows in a pass; `prompt`: a chunk of its prompt, which is committed as a whole."""

    job: Job
    plan: Plan
    prompt: bool = False


@dataclass(frozen=True)
class Batch:
    """The next pass. `prefill`: one chunk of one prompt on the grid, in a pass of its own."""

    parts: tuple[Part, ...] = ()
    prefill: bool = False


@dataclass(frozen=True)
class Limits:
    """What bounds a pass and what it needs in memory.

    `running` requests share passes of `rows` decoding rows; their states and the prefix cache together take at most
    `memory` bytes, the cache at most `prefixes` of them. `mixed`: prompts share passes with decoding requests.
    """

    running: int
    rows: int
    memory: int
    prefixes: int
    mixed: bool


class Scheduler:
    """Waiting, running and moved-out requests, and the prefixes that outlive them."""

    def __init__(self, limits: Limits, size: StateSize, costs: PassCosts | None = None) -> None:
        self._limits = limits
        self._costs = costs
        self._size = size
        self._chunk = CHUNK
        self.prefixes = PrefixCache(1 if limits.mixed else CHUNK, recurrent=size.fixed > 0)
        # Snapshots on the way through a prompt take at most about as many bytes as the cells between them.
        chunks = 1 if size.cell == 0 else -(-size.fixed // (size.cell * CHUNK))
        self._stride = CHUNK * max(1, chunks)
        self._waiting: dict[int, Job] = {}  # by id, so in order of arrival
        self._running: list[Job] = []  # in order of arrival
        self._moved: dict[int, Job] = {}
        self._moved_out = MovedOut()
        self._prefilled_last = False
        self._oldest_first = False
        self.preemptions = 0
        self.lookups = self.hits = self.reused = self.looked_up = 0

    def add(self, job: Job) -> None:
        """Queue a request."""
        self._waiting[job.live.id] = job

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many requests run, wait, and are moved out."""
        return len(self._running), len(self._waiting), len(self._moved)

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not (self._waiting or self._running or self._moved)

    @property
    def state_bytes(self) -> int:
        """Bytes that running requests hold."""
        return sum(job.live.state.nbytes for job in self._running)

    def retire(self) -> None:
        """Forget running requests that are done."""
        if any(job.live.done for job in self._running):
            self._running = [job for job in self._running if not job.live.done]

    def drop(self, id: int) -> None:
        """A request was cancelled: forget it, wherever it is."""
        self._waiting.pop(id, None)
        if self._moved.pop(id, None) is not None:
            self._moved_out.drop(id)
        self.retire()

    def next(self) -> Batch:
        """The next pass; without parts if nothing is left to do."""
        self.retire()
        self._admit()
        self._fit()
        prompts, decoding = self._phases()
        if self._limits.mixed:
            parts = self._plans(decoding)
            used = sum(part.plan.rows for part in parts)
            budget = max(MIXED_ROWS, self._limits.rows + MIXED_ROWS - used) if parts else self._chunk
            return Batch((*parts, *self._chunks(prompts, budget)))
        # Prompt chunks and decoding passes take turns.
        if prompts and not (decoding and self._prefilled_last):
            self._prefilled_last = True
            if chunk := self._chunks(prompts, self._chunk, count=1):
                return Batch(chunk, prefill=True)
            _, decoding = self._phases()
        self._prefilled_last = False
        return Batch(self._plans(decoding))

    def _phases(self) -> tuple[list[Job], list[Job]]:
        """Running requests whose prompts aren't computed yet, and those that decode."""
        prompts, decoding = list[Job](), list[Job]()
        for job in self._running:
            (prompts if job.live.state.length < len(job.prompt) else decoding).append(job)
        return prompts, decoding

    # Rows.

    def _plans(self, decoding: Sequence[Job]) -> tuple[Part, ...]:
        """Everyone's rows for one pass: equal shares, and what some don't need goes to the others."""
        left, parts = self._limits.rows, []
        total = sum(max(1, job.rows) for job in decoding)
        for i, job in enumerate(sorted(decoding, key=lambda job: job.rows)):
            try:
                share = max(1, left // (len(decoding) - i))
                costs = None if job.live.request.decode.free_rows else self._costs
                plan = job.decoder.plan(Budget(share, total - max(1, job.rows), costs))
            except Exception as error:
                job.live.fail(error)
                continue
            total += plan.rows - max(1, job.rows)
            job.rows = plan.rows
            left -= plan.rows
            parts.append(Part(job, plan))
        return tuple(sorted(parts, key=lambda part: part.job.live.id))

    def _chunks(self, prompts: Sequence[Job], budget: int, count: int | None = None) -> tuple[Part, ...]:
        """Chunks of prompts in at most `budget` rows, of at most `count` prompts.

        In every second pass the oldest prompt comes first, so that none starves; else those that have least left do,
        so that short ones needn't wait for long ones.
        """
        order = sorted(prompts, key=lambda job: job.prompt_left)
        self._oldest_first = not self._oldest_first
        if self._oldest_first and prompts:
            order.remove(prompts[0])
            order.insert(0, prompts[0])
        parts: list[Part] = []
        for job in order:
            if budget <= 0 or len(parts) == count:
                break
            self._reuse(job)
            shared = self._limits.prefixes > 0 and any(_computes_next(part, job) for part in parts)
            if job.prompt_left and not shared:
                start = job.live.state.length
                end = self._chunk_end(job, start, budget)
                parts.append(Part(job, Plan(tuple(job.prompt[start:end].tolist()), 0), prompt=True))
                budget -= end - start
        return tuple(parts)

    def _chunk_end(self, job: Job, start: int, budget: int) -> int:
        """Where a chunk ends: with the prompt, on the grid, with the budget, or where a snapshot is worth its bytes."""
        end = len(job.prompt)
        if not self._limits.mixed or self._size.fixed:
            end = min(end, (start // self._chunk + 1) * self._chunk)
        if self._limits.mixed:
            end = min(end, start + budget)
            if start < job.branch:
                end = min(end, job.branch)
        return end

    # Prefixes.

    def _reuse(self, job: Job, first: bool = False) -> None:
        """Take over what the prefix cache has of the job's prompt beyond what it has computed itself."""
        state = job.live.state
        before = state.length
        hit = self.prefixes.match(job.prompt, beyond=before)
        if hit.length > before:
            state.load(hit.length, hit.pieces, hit.snapshot)
            job.live.cached_tokens += hit.length - before
            self.reused += hit.length - before
        if state.length < hit.shared < len(job.prompt):
            job.branch = hit.shared
        if first:
            self.lookups += 1
            self.hits += hit.length > 0
            self.looked_up += len(job.prompt)

    def keep(self, job: Job) -> None:
        """Remember what a job has computed: a chunk of its prompt or, where that is exact, its whole conversation.

        Decoding rows may be rounded otherwise than prompts in chunks, unless rows are exact in any company.
        """
        state, live = job.live.state, job.live
        answered = state.length > len(job.prompt)
        if self._limits.prefixes <= 0 or (answered and not self._limits.mixed):
            return
        tokens = np.array(live.tokens[: state.length], np.int32) if answered else job.prompt[: state.length]
        # On the grid the next turn of a conversation can go on from the last whole chunk, else from any end.
        last = len(job.prompt) - state.length < (1 if self._limits.mixed else self._chunk)
        snapshot = last or state.length % self._stride == 0 or state.length == job.branch
        most = min(self._limits.prefixes, self._limits.memory - self.state_bytes)
        self.prefixes.insert(tokens, state, most_bytes=most, snapshot=snapshot)

    # Memory.

    def _admit(self) -> None:
        """Let requests in while there is room for them, and for those that run to grow in the next pass."""
        while len(self._running) < self._limits.running and (self._moved or self._waiting):
            moved = bool(self._moved)
            id = min(self._moved) if moved else next(iter(self._waiting))
            job = (self._moved if moved else self._waiting)[id]
            length, capacity = self._moved_out.positions(id) if moved else (len(job.prompt), 0)
            capacity = max(capacity, min(length + self._limits.rows, job.most))
            needed = self._size.at(capacity) + (self._growth() if self._running else 0)
            if needed > self._limits.memory - self.state_bytes:
                return
            if not moved:
                self.prefixes.match(job.prompt)  # what it will take over is not what makes room
            self._room(needed)
            state = job.live.state
            state.most = job.most
            try:
                if moved:
                    del self._moved[id]
                    self._moved_out.take(id, state, capacity)
                else:
                    del self._waiting[id]
                    state.reserve(capacity)
                    self._reuse(job, first=True)
            except Exception as error:
                job.live.fail(error)
                continue
            self._running.append(job)

    def _fit(self) -> None:
        """Before a pass: make room for its rows. Prefixes are evicted, then the youngest requests are moved out."""
        while not self._room(self._growth()) and len(self._running) > 1:
            job = self._running.pop()
            try:
                self._moved_out.put(job.live.id, job.live.state)
            except Exception as error:
                job.live.fail(
                    TrifoliumError(
                        f"request {job.live.id} had to make room, and its state could not be written to disk "
                        f"({error}): point TMPDIR to a disk with room, allow more memory, or send fewer requests"
                    )
                )
                continue
            self._moved[job.live.id] = job
            self.preemptions += 1

    def _growth(self) -> int:
        """Bytes that running requests need at most in the next pass, beyond what they hold."""
        growth, rows = 0, self._limits.rows
        for job in self._running:
            state = job.live.state
            if state.length + rows > state.capacity:
                growth += state.growth(min(state.length + rows, job.most))
        return growth

    def _room(self, needed: int) -> bool:
        """Whether there is room for `needed` bytes more; evicts prefixes if that is what it takes."""
        left = self._limits.memory - self.state_bytes
        if left < needed:
            return False
        self.prefixes.evict(self.prefixes.nbytes + needed - left)
        return True


def _computes_next(part: Part, job: Job) -> bool:
    """Whether the pass computes what a job needs next as a part of another prompt: it waits, and takes it over."""
    at, start = job.live.state.length, part.job.live.state.length
    computed = start <= at < start + len(part.plan.commit)
    return computed and np.array_equal(part.job.prompt[: at + 1], job.prompt[: at + 1])
