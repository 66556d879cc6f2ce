"""How near a dtype's numbers are to float32's: on the same text, and in what comes out.

Teacher-forced: every model reads the same prompts and answers, and its commit rows' predictions are compared with
float32's at every answer token. In passes of WIDTH rows, as a verifying pass has, so that the kernels are those that
decoding uses. Then greedy answers: how far they go on alike. Letters: N rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..dtypes import DTYPES, DType
from ..errors import UsageError
from ..model import RequestRows, RequestState, Rows, Transformer
from .speed import Conversation, read_prompts

if TYPE_CHECKING:
    from ..api import LM

REFERENCE: DType = "float32"
WIDTH = 32
"""Commit rows of a pass."""
CHUNK = 256
"""Prompts are prefilled on the scheduler's grid."""

Load = Callable[[DType], "LM"]
"""A model by the dtype of its products. All of them must be of the same weights."""


@dataclass(frozen=True)
class Sample:
    """A prompt and the answer that every dtype reads, as token ids."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True)
class Fidelity:
    """One dtype against float32. Over `tokens` answer tokens of the given text: the divergence KL(float32 || dtype) in
    nats, mean and 99th percentile; the share of them where both rank the same token first; the perplexity.

    Over `answers` greedy answers: the mean number of tokens before the first that differs (of `answer_tokens` in the
    mean), and the share that don't differ. `exact`: whether `verified` equals `ar` by construction. Where it doesn't,
    `verified_differs` is the rate of first differences: one in so many tokens that were alike until then.
    """

    dtype: DType
    tokens: int
    kl_mean: float
    kl_p99: float
    agreement: float
    perplexity: float
    answers: int
    answer_tokens: float
    alike_tokens: float
    alike_answers: float
    exact: bool
    verified_differs: float | None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Scores:
    """At every answer token [tokens]: KL(float32 || dtype), whether both rank one token first, -log p of the token."""

    kl: Tensor
    agrees: Tensor
    surprise: Tensor


def compare(
    load: Load,
    dtypes: Sequence[DType],
    conversations: Sequence[Conversation],
    *,
    max_tokens: int = 128,
    progress: Callable[[], None] = lambda: None,
) -> list[Fidelity]:
    """Each of `dtypes` against float32, which comes first. Two models are in memory at a time.

    A conversation that ends with an answer is read as it is, cut at `max_tokens` answer tokens; one that ends with the
    user's turn gets float32's own greedy answer. `progress` is called once a dtype.
    Raises UsageError if no answer is left, and what `LM.generate` raises.
    """
    reference = load(REFERENCE)
    prompts = [reference.encode(_prompt(messages)) for messages in conversations]
    answers = greedy(reference, prompts, "ar", max_tokens)
    samples = [
        Sample(tuple(prompt), tuple(reference.tokenizer.encode(given, special=False)[:max_tokens]) if given else answer)
        for prompt, answer, given in zip(prompts, answers, map(_answer, conversations), strict=True)
    ]
    samples = [sample for sample in samples if sample.answer]
    if not samples:
        raise UsageError("every answer is empty: give conversations with answers, or other prompts")
    found = []
    for dtype in dict.fromkeys((REFERENCE, *dtypes)):
        lm = reference if dtype == REFERENCE else load(dtype)
        own = answers if dtype == REFERENCE else greedy(lm, prompts, "ar", max_tokens)
        differs = None if lm.model.exact else first_differences(own, greedy(lm, prompts, "verified", max_tokens))
        scores = score(reference.model, lm.model, samples)
        alike = [common_prefix(a, b) for a, b in zip(answers, own, strict=True)]
        found.append(
            Fidelity(
                dtype=dtype,
                tokens=len(scores.kl),
                kl_mean=float(scores.kl.mean()),
                kl_p99=float(scores.kl.quantile(0.99)),
                agreement=float(scores.agrees.double().mean()),
                perplexity=math.exp(float(scores.surprise.mean())),
                answers=len(answers),
                answer_tokens=sum(map(len, answers)) / len(answers),
                alike_tokens=sum(alike) / len(alike),
                alike_answers=sum(a == b for a, b in zip(answers, own, strict=True)) / len(answers),
                exact=lm.model.exact,
                verified_differs=differs,
            )
        )
        progress()
    return found


@torch.inference_mode()
def score(reference: Transformer, model: Transformer, samples: Sequence[Sample]) -> Scores:
    """Both packed models on the same text."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for sample in samples:
        states = reference.new_state(), model.new_state()
        for state, network in zip(states, (reference, model), strict=True):
            _prefill(network, state, sample.prompt[:-1])
        tokens = (sample.prompt[-1], *sample.answer)
        for start in range(0, len(sample.answer), WIDTH):
            targets = torch.tensor(sample.answer[start : start + WIDTH])
            rows = tokens[start : start + len(targets)]
            p = commit_logits(reference, states[0], rows).double().log_softmax(-1)
            q = p if model is reference else commit_logits(model, states[1], rows).double().log_softmax(-1)
            kl = F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
            parts.append((kl, p.argmax(-1) == q.argmax(-1), -q.gather(1, targets[:, None])[:, 0]))
    return Scores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def commit_logits(model: Transformer, state: RequestState, tokens: Sequence[int]) -> Tensor:
    """Predictions [N, V] after each of `tokens`, which are committed, by one decoding pass."""
    rows = Rows.build([RequestRows(state, tokens)], tile=model.tiled)
    logits = model.logits(model.rows(rows)[: len(tokens)])
    state.accept(len(tokens))
    return logits


def greedy(lm: LM, prompts: Sequence[Sequence[int]], mode: str, max_tokens: int) -> list[tuple[int, ...]]:
    """Greedy answers to all prompts, in shared passes."""
    handles = [lm.submit(list(prompt), mode=mode, max_tokens=max_tokens) for prompt in prompts]
    while not all(handle.done for handle in handles):
        lm.engine.step()
    return [handle.result.token_ids for handle in handles]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens before the first that differs."""
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


def first_differences(ar: Sequence[Sequence[int]], verified: Sequence[Sequence[int]]) -> float:
    """First differing tokens, divided by all tokens up to there: what follows a difference is another text."""
    alike = [common_prefix(a, b) for a, b in zip(ar, verified, strict=True)]
    differing = sum(tuple(a) != tuple(b) for a, b in zip(ar, verified, strict=True))
    return differing / max(1, sum(alike) + differing)


def markdown(found: Sequence[Fidelity]) -> str:
    """The table of docs/numbers.md."""
    first = found[0]
    lines = [
        f"| products | KL to float32, mean | KL, 99th percentile | same first choice, {first.tokens:,} tokens | "
        f"perplexity | greedy answers alike, tokens of {first.answer_tokens:.0f} | "
        f"answers alike to the end, of {first.answers} | verified against ar |",
        "| --- " * 8 + "|",
    ]
    for each in found:
        if each.verified_differs is None:
            verified = "equal by construction"
        elif each.verified_differs:
            verified = f"first differs after {1 / each.verified_differs:,.0f} tokens"
        else:
            verified = "no difference met"
        lines.append(
            f"| {each.dtype} | {each.kl_mean:.2g} | {each.kl_p99:.2g} | {each.agreement:.2%} | {each.perplexity:.3f} | "
            f"{each.alike_tokens:.0f} | {each.alike_answers:.0%} | {verified} |"
        )
    return "\n".join(lines) + "\n"


def read_conversations(path: Path | None, limit: int | None = None) -> list[Conversation]:
    """The first conversations of a training corpus whose prompts are held out (train.data), or those of `read_prompts`.

    A corpus is a file whose name ends in `.jsonl.gz`; a plain JSONL file is taken whole, prompts or conversations.
    """
    if path is None or path.suffix != ".gz":
        return read_prompts(path)[:limit]
    from ..train.data import is_held_out, read_corpus

    found: list[Conversation] = []
    for item in read_corpus([path]):
        user = next(message["content"] for message in item["messages"] if message["role"] == "user")
        if is_held_out(user):
            found.append(item["messages"])
        if len(found) == limit:
            break
    if not found:
        raise UsageError(f"{path} holds no held-out conversation")
    return found


def _prefill(model: Transformer, state: RequestState, tokens: Sequence[int]) -> None:
    for start in range(0, len(tokens), CHUNK):
        chunk = tokens[start : start + CHUNK]
        model.rows(Rows.build([RequestRows(state, chunk)], prefill=True))
        state.accept(len(chunk))


def _prompt(messages: Conversation) -> Conversation:
    return messages[:-1] if messages[-1].get("role") == "assistant" else messages


def _answer(messages: Conversation) -> str:
    return str(messages[-1]["content"]) if messages[-1].get("role") == "assistant" else ""


def dtypes_to_compare(names: str | None) -> list[DType]:
    """The dtypes of a list with commas; all of them for None. Raises UsageError."""
    if names is None:
        return list(DTYPES)
    asked = [name.strip() for name in names.split(",")]
    if unknown := [name for name in asked if name not in DTYPES]:
        raise UsageError(f"unknown dtype {unknown[0]!r}: choose from {', '.join(DTYPES)}")
    return [dtype for dtype in DTYPES if dtype in asked]
