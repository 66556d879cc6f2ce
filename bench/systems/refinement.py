"""diffusers' LLaDA2Pipeline over our converted model: their loop and policy choose, our model computes the logits.

The pipeline fills aligned blocks of a masked sequence and asks its model for the logits of the block, position by
position. Our conversion predicts with an offset of one, so the logits of position i come from row i - 1: for a block's
first masked position, the commit row before it; for the others, preview rows. That is the form that the adapter was
trained in. The pipeline hands over the whole sequence at every step and keeps nothing; here the state of what stands
before the block is kept between steps, which spares it the work and favours it.

Its loop has no place for the adapter's chain, which lets a proposal know the one to its left.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import diffusers
import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
from torch import Tensor, nn

import trifolium
from trifolium.api import LM
from trifolium.engine.plan import Plan
from trifolium.engine.runner import Runner
from trifolium.model import MASK

from .protocol import Answer, Ask, Job

THRESHOLD = 0.9
"""The confidence that Trifolium's `diffusion` asks for, too."""


class Host:
    """The model, in the dtype that the variant names."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        self._job = job

    def variant(self, name: str) -> Refinement:
        lm = trifolium.load(self._job.model, dtype=name, progress=False)  # type: ignore[arg-type]
        return Refinement(lm, self._job)


class Denoiser(nn.Module):
    """Our model under the pipeline's face: (ids [1, W], ...) -> logits [1, block, V + 1] of the last block."""

    def __init__(self, lm: LM, block: int) -> None:
        super().__init__()
        self._lm, self._block = lm, block
        self._runner = Runner(lm.model)
        self.mask_id = lm.model.config.vocab_size
        """One past the vocabulary: no token of the model's own stands for a mask."""
        self.start_over()

    @property
    def device(self) -> torch.device:
        """Where the pipeline puts its sequence."""
        return self._lm.model.embed.weight.device

    def start_over(self) -> None:
        """Forget the last answer."""
        self._state = self._lm.model.new_state()
        self._window = 0
        self.passes = 0

    def forward(self, ids_1W: Tensor, **_: Any) -> SimpleNamespace:
        ids = ids_1W[0].tolist()
        if len(ids) != self._window:  # a new block: all before its first mask is final now
            self._window = len(ids)
            self._start = ids.index(self.mask_id)
            while self._start - 1 - self._state.length > 0:
                self._runner.prefill(
                    self._state, ids[self._state.length : min(self._start - 1, (self._state.length // 256 + 1) * 256)]
                )
        self.passes += 1
        inputs = tuple(MASK if token == self.mask_id else token for token in ids[self._start : -1])
        plan = Plan((ids[self._start - 1],), 1, ((1, inputs),) if inputs else ())
        outcome = self._runner.run([(self._state, plan)])[0]
        rows = [outcome.logits, *(self._lm.model.logits(block) for block in outcome.blocks)]
        found = torch.cat(rows)
        logits = found.new_full((1, self._block, self.mask_id + 1), -torch.inf)
        logits[0, -len(found) :, :-1] = found
        return SimpleNamespace(logits=logits)


class Refinement:
    """The pipeline around it."""

    def __init__(self, lm: LM, job: Job) -> None:
        if lm.model.adapter is None:
            raise RuntimeError("this model has no adapter to preview with")
        self._lm, self._job = lm, job
        self._block = lm.model.adapter.config.block_size
        self._model = Denoiser(lm, self._block)
        self._pipeline = LLaDA2Pipeline(self._model, BlockRefinementScheduler(block_length=self._block))
        self._pipeline.set_progress_bar_config(disable=True)
        self.facts = {
            "version": diffusers.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "dtype": lm.dtype,
            "block": self._block,
            "threshold": THRESHOLD,
        }

    def template_tokens(self, messages: Sequence[dict[str, str]]) -> int | None:
        return None  # it would use a tokenizer of ours

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        if len(asks) > 1:
            raise RuntimeError("the wrapper answers one request at a time")
        ask, size = asks[0], len(asks[0].prompt)
        self._model.start_over()
        arrivals: list[tuple[float, int]] = []
        seen = 0

        def note(_pipeline: Any, _step: int, _timestep: int, values: dict[str, Tensor]) -> dict[str, Tensor]:
            nonlocal seen
            tail = values["block_x"][0, size:].tolist()
            known = tail.index(self._model.mask_id) if self._model.mask_id in tail else len(tail)
            known = min(known, ask.max_tokens)
            if known > seen:
                arrivals.append((time.perf_counter() - started, known - seen))
                seen = known
            return {}

        started = time.perf_counter()
        out = self._pipeline(
            input_ids=torch.tensor([ask.prompt]), gen_length=ask.max_tokens, block_length=self._block,
            num_inference_steps=self._block, temperature=0.0, sampling_method="greedy", threshold=THRESHOLD,
            editing_threshold=None, eos_early_stop=not ask.ignore_eos, eos_token_id=self._job.eos_ids[0],
            mask_token_id=self._model.mask_id, output_type="seq", callback_on_step_end=note,
        )  # fmt: skip
        row = out.sequences[0].tolist()[: ask.max_tokens]
        ends = [i for i, token in enumerate(row) if token in self._job.eos_ids and not ask.ignore_eos]
        tokens = ends[0] if ends else len(row)
        text = self._lm.tokenizer.decode(row[:tokens], skip_special=True)
        cut, left = [], tokens
        for at, count in arrivals:
            if left > 0:
                cut.append((at, min(count, left)))
            left -= count
        return [Answer(ask.id, text, tokens, "stop" if ends else "length", cut, self._model.passes)]

    def special(self, kind: str) -> dict[str, Any]:
        raise NotImplementedError(f"diffusers has no measurement {kind!r}")
