"""Runs passes: lays out the rows of all plans, runs the model once, and hands every plan its part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor

from ..errors import NumericalError
from ..model import RequestRows, RequestState, Rows, Transformer
from ..model.state import DeltaNetState
from .plan import Outcome, Plan


class Runner:
    """The only part of the engine that runs the model's layers."""

    def __init__(self, model: Transformer) -> None:
        self._model = model

    def prefill(self, state: RequestState, chunk: Sequence[int]) -> None:
        """Run one chunk of one prompt and commit it."""
        rows = Rows.build([RequestRows(state, chunk)], prefill=True)
        _check_finite(self._model.rows(rows), rows)
        state.accept(len(chunk))

    def run(self, plans: Sequence[tuple[RequestState, Plan]]) -> list[Outcome]:
        """One pass over all plans. States get scratch beyond their length; nothing is committed."""
        requests = [RequestRows(state, plan.commit, plan.blocks, plan.parents) for state, plan in plans]
        rows = Rows.build(requests, tile=self._model.tiled)
        hidden = self._model.rows(rows)
        _check_finite(hidden[: rows.real_commit], rows)
        read = sum(rows.experts_read) / len(rows.experts_read) if rows.experts_read else 0.0
        wanted = [
            segment.start + row for segment, (_, plan) in zip(rows.segments, plans, strict=True) for row in plan.read
        ]
        ends = hidden[wanted]
        logits = self._model.logits(ends) if wanted else hidden.new_empty(0, 1)
        largest = _largest(logits)
        outcomes = []
        at = 0
        for segment, (_, plan) in zip(rows.segments, plans, strict=True):
            blocks = [hidden[rows.num_commit + b.start : rows.num_commit + b.start + b.count] for b in segment.branches]
            part = slice(at, at + len(plan.read))
            outcomes.append(Outcome(ends[part], logits[part], largest[part], blocks, read))
            at = part.stop
        return outcomes


def _largest(logits_NV: Tensor) -> list[int]:
    """The token with the largest logit in each row, the first among equals; on a CPU by numpy, 3 times as fast."""
    if logits_NV.is_cpu:
        return [int(row.argmax()) for row in logits_NV.numpy()]
    return cast(list[int], logits_NV.argmax(-1).tolist())


def _check_finite(hidden_ND: Tensor, rows: Rows) -> None:
    """Raises NumericalError that names the first layer at fault, if commit rows aren't finite. Nothing is committed."""
    if bool(hidden_ND.isfinite().all()):
        return
    for segment in rows.segments:
        for i, layer in enumerate(segment.state.layers):
            if not layer.finite():
                kind = "delta-net state" if isinstance(layer, DeltaNetState) else "keys and values"
                raise NumericalError(f"layer {i}: NaN or infinity in its {kind}; the request can't go on")
    raise NumericalError("the last layer's output is not finite; check the weights and the dtype")
