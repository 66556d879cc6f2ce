"""Runs passes: lays out the rows of all plans, runs the model once, and hands every plan its part."""

from __future__ import annotations

from collections.abc import Sequence

from ..model import RequestRows, RequestState, Rows, Transformer
from .plan import Outcome, Plan


class Runner:
    """The only part of the engine that runs the model's layers."""

    def __init__(self, model: Transformer, vocab_size: int) -> None:
        self._model = model
        self._vocab_size = vocab_size

    def prefill(self, state: RequestState, chunk: Sequence[int]) -> None:
        """Run one chunk of one prompt and commit it."""
        self._model.rows(Rows.build([RequestRows(state, chunk)], prefill=True))
        state.accept(len(chunk))

    def run(self, plans: Sequence[tuple[RequestState, Plan]]) -> list[Outcome]:
        """One pass over all plans. States get scratch beyond their length; nothing is committed."""
        requests = [RequestRows(state, plan.commit, plan.blocks, plan.parents) for state, plan in plans]
        rows = Rows.build(requests, tile=self._model.tiled)
        hidden = self._model.rows(rows)
        wanted = [
            row
            for segment, (_, plan) in zip(rows.segments, plans, strict=True)
            for row in range(segment.start + segment.count - plan.heads, segment.start + segment.count)
        ]
        ends = hidden[wanted]
        logits = self._model.logits(ends)[:, : self._vocab_size] if wanted else hidden.new_empty(0, 1)
        largest = logits.argmax(-1).tolist()
        outcomes = []
        at = 0
        for segment, (_, plan) in zip(rows.segments, plans, strict=True):
            blocks = [hidden[rows.num_commit + b.start : rows.num_commit + b.start + b.count] for b in segment.branches]
            part = slice(at, at + plan.heads)
            outcomes.append(Outcome(ends[part], logits[part], largest[part], blocks))
            at += plan.heads
        return outcomes
