"""Which requests take part in the next pass. First come, first served; a bounded number runs at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from .plan import Decoder
from .request import Live

CHUNK = 256
"""Prompts are cut at multiples of this position, whatever else runs: a chunk's rounding depends on nothing else."""


@dataclass
class Job:
    """A request and how it decodes."""

    live: Live
    decoder: Decoder

    @property
    def prompt_left(self) -> int:
        """Prompt tokens still to be prefilled: all but the last, whose commit row is part of the first pass."""
        return max(0, self.live.prompt_tokens - 1 - self.live.state.length)


@dataclass(frozen=True)
class Batch:
    """The next pass: one prompt's chunk, or the rows of all decoding requests."""

    jobs: tuple[Job, ...]
    chunk: tuple[int, ...] = ()
    """The tokens to prefill for the only job; empty in decoding passes."""


class Scheduler:
    """Waiting and running requests."""

    def __init__(self, max_running: int) -> None:
        self._max_running = max_running
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._prefilled_last = False

    def add(self, job: Job) -> None:
        """Queue a request."""
        self._waiting.append(job)

    @property
    def idle(self) -> bool:
        """Whether no request is left."""
        return not self._waiting and not self._running

    @property
    def jobs(self) -> Sequence[Job]:
        """All unfinished requests."""
        return (*self._running, *self._waiting)

    def retire(self) -> None:
        """Forget requests that are done, so that their states can be freed."""
        self._running = [job for job in self._running if not job.live.done]
        self._waiting = deque(job for job in self._waiting if not job.live.done)

    def next(self) -> Batch | None:
        """The next pass, or None if nothing is to be done. Prompt chunks and decoding passes take turns."""
        self.retire()
        while self._waiting and len(self._running) < self._max_running:
            self._running.append(self._waiting.popleft())
        prompts = [job for job in self._running if job.prompt_left]
        decoding = tuple(job for job in self._running if not job.prompt_left)
        if prompts and not (decoding and self._prefilled_last):
            self._prefilled_last = True
            return self._chunk(prompts[0])
        self._prefilled_last = False
        return Batch(decoding) if decoding else None

    @staticmethod
    def _chunk(job: Job) -> Batch:
        start = job.live.state.length
        end = min(job.live.prompt_tokens - 1, (start // CHUNK + 1) * CHUNK)
        return Batch((job,), tuple(job.live.tokens[start:end]))
