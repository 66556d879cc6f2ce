"""transformers' `generate` on the same file, in float32: plain, or with drafts looked up in the prompt.

Many requests run as one left-padded batch, which is what `generate` offers; prompt look-up takes one request only.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

from .protocol import Answer, Ask, Job, model_file

LOOKUP_TOKENS = 10
"""Drafts of a look-up, as transformers' own documents suggest."""


class Host:
    """The model, once, for both variants."""

    def __init__(self, job: Job) -> None:
        torch.set_num_threads(job.threads)
        file = model_file(job.model)
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        self._model = model.eval()
        self._job = job

    def variant(self, name: str) -> Generate:
        return Generate(self._model, self._tokenizer, name, self._job)


class Arrivals(BaseStreamer):  # type: ignore[misc]
    """Notes when tokens come, for all rows of a batch."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.times: list[tuple[float, int]] = []
        self._rows = 0
        """Of the batch; 0 until the prompt has been shown."""

    def put(self, value: torch.Tensor) -> None:
        if self._rows:
            count = 1 if self._rows > 1 else value.shape[-1]
            self.times.append((time.perf_counter() - self.started, count))
        else:
            self._rows = value.shape[0]

    def end(self) -> None:
        pass


class Generate:
    """One way to generate."""

    def __init__(self, model: Any, tokenizer: Any, name: str, job: Job) -> None:
        self._model, self._tokenizer, self._job = model, tokenizer, job
        self._options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if name == "lookup" else {}
        self.facts = {
            "version": transformers.__version__,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "dtype": "float32",
            "attention": model.config._attn_implementation,
            **self._options,
        }

    def template_tokens(self, messages: Sequence[dict[str, str]]) -> int | None:
        encoded = self._tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
        return len(encoded["input_ids"])

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        width, longest = max(len(a.prompt) for a in asks), max(a.max_tokens for a in asks)
        pad = self._job.eos_ids[0]
        ids = torch.tensor([[pad] * (width - len(a.prompt)) + list(a.prompt) for a in asks])
        mask = torch.tensor([[0] * (width - len(a.prompt)) + [1] * len(a.prompt) for a in asks])
        passes = 0

        def count(*_: object) -> None:
            nonlocal passes
            passes += 1

        hook = self._model.register_forward_hook(count)
        minimum = {"min_new_tokens": longest} if asks[0].ignore_eos else {}
        streamer = Arrivals()
        try:
            with torch.inference_mode():
                out = self._model.generate(
                    ids, attention_mask=mask, max_new_tokens=longest, do_sample=False, temperature=None, top_p=None,
                    top_k=None, eos_token_id=list(self._job.eos_ids), pad_token_id=pad, streamer=streamer, **minimum,
                    **self._options,
                )  # fmt: skip
        finally:
            hook.remove()
        return [
            self._one(ask, row, streamer.times, passes) for ask, row in zip(asks, out[:, width:].tolist(), strict=True)
        ]

    def _one(self, ask: Ask, row: list[int], times: list[tuple[float, int]], passes: int) -> Answer:
        ends = [i for i, token in enumerate(row[: ask.max_tokens]) if token in self._job.eos_ids and not ask.ignore_eos]
        tokens = ends[0] if ends else min(len(row), ask.max_tokens)
        arrivals: list[tuple[float, int]] = []
        left = tokens
        for at, count in times:
            if left > 0:
                arrivals.append((at, min(count, left)))
            left -= count
        text = self._tokenizer.decode(row[:tokens], skip_special_tokens=True)
        own = passes if self._options else min(passes, tokens + bool(ends))  # a batch goes on until its last row ends
        return Answer(ask.id, text, tokens, "stop" if ends else "length", arrivals, own)

    def special(self, kind: str) -> dict[str, Any]:
        raise NotImplementedError(f"transformers has no measurement {kind!r}")
