"""Scores are the log-probabilities of plain forward passes, to the bit the same alone and in company."""

from __future__ import annotations

import random

import pytest
import torch

from tiny_engine import POSITIONS, VOCAB
from trifolium.config import DecodeConfig
from trifolium.engine import Continuation, Engine, Request, ScoreRequest, Scores
from trifolium.errors import PromptError, UsageError
from trifolium.model import RequestRows, Rows

KINDS = [(torch.float32, False), (torch.int8, False), (torch.int8, True), (torch.float32, True)]


def plain(model, prompt, tokens) -> list[float]:
    """log p of each token, from one causal pass over everything, by nothing but the model."""
    everything = (*prompt, *tokens)
    with torch.inference_mode():
        rows = Rows.build([RequestRows(model.new_state(), everything)], tile=model.tiled)
        hidden = model.rows(rows)[len(prompt) - 1 : len(everything) - 1]
        logs = torch.log_softmax(model.logits(hidden).double(), -1)
    return [float(log[token]) for log, token in zip(logs, tokens, strict=True)]


def run(engine: Engine, request: ScoreRequest) -> Scores:
    handle = engine.score(request)
    while engine.step():
        pass
    return handle.scores


def random_request(rng: random.Random, prompt: list[int]) -> ScoreRequest:
    """Continuations that share beginnings, some of them contained in others, some with context that isn't scored."""
    stems = [[rng.randrange(VOCAB) for _ in range(rng.randint(0, 9))] for _ in range(3)]
    continuations = []
    for _ in range(rng.randint(1, 9)):
        tail = [rng.randrange(5) for _ in range(rng.randint(1, 4))]
        tokens = rng.choice(stems) + tail
        continuations.append(Continuation(tuple(tokens), rng.choice([None, 1, len(tail)])))
    return ScoreRequest(prompt, continuations)


@pytest.mark.parametrize(("dtype", "hybrid"), KINDS)
def test_scores_are_those_of_plain_passes(models, prompts, dtype, hybrid):
    model = models(dtype, hybrid=hybrid)
    rng = random.Random(1)
    for prompt in prompts(2, seed=3):
        request = random_request(rng, prompt)
        scores = run(Engine(model, max_rows=rng.choice([3, 16, 96])), request)
        for continuation, found in zip(request.continuations, scores.logprobs, strict=True):
            # Prompts of hybrids are read in chunks, which round otherwise than single rows do.
            expected = plain(model, prompt, continuation.tokens)[continuation.first :]
            assert found == pytest.approx(expected, abs=3e-3 if hybrid else 1e-9)


@pytest.mark.parametrize(("dtype", "hybrid"), KINDS)
def test_company_and_row_budget_change_no_bit(models, prompts, dtype, hybrid):
    model = models(dtype, hybrid=hybrid)
    rng = random.Random(2)
    requests = [random_request(rng, prompt) for prompt in prompts(4, seed=5)]
    alone = [run(Engine(model), request).logprobs for request in requests]
    engine = Engine(model, max_rows=20)
    handles = [engine.score(request) for request in requests]
    answers = [engine.add(Request(p, decode=DecodeConfig(max_tokens=9))) for p in prompts(3, seed=6)]
    while engine.step():
        pass
    assert [handle.scores.logprobs for handle in handles] == alone
    assert all(answer.result.tokens for answer in answers)
    for request, expected in zip(requests, alone, strict=True):
        # One continuation at a time, its prompt from the cache now.
        for continuation, found in zip(request.continuations, expected, strict=True):
            assert run(engine, ScoreRequest(request.prompt, [continuation])).logprobs == (found,)


def test_a_tree_takes_few_rows_and_passes(models):
    model = models()
    prompt = list(range(30))
    continuations = [Continuation((1, 2, 3, 4, 5, 6, last), 1) for last in range(10, 40)]
    scores = run(Engine(model, max_rows=8), ScoreRequest(prompt, continuations))
    assert (scores.rows, scores.passes) == (7, 1)  # the prompt's last token and the six that are shared
    many = [Continuation((first, 2, 3)) for first in range(40)]
    scores = run(Engine(model, max_rows=11), ScoreRequest(prompt, many))
    # Where a path is cut between two passes, what leads to its end runs again.
    assert scores.passes == 8 and 1 + 2 * 40 <= scores.rows <= 1 + 2 * 40 + 7


def test_a_path_longer_than_the_budget_runs_at_once(models):
    model = models()
    continuation = Continuation(tuple(range(50)), 1)
    scores = run(Engine(model, max_rows=8), ScoreRequest([3], [continuation]))
    assert scores.passes == 1 and scores.rows == 50
    assert scores.logprobs[0] == pytest.approx(plain(model, [3], continuation.tokens)[-1:], abs=1e-9)


def test_the_state_is_freed_and_the_prompt_kept(models):
    engine = Engine(models())
    request = ScoreRequest(list(range(40)), [Continuation((1,))])
    assert run(engine, request).cached_tokens == 0
    assert engine.stats().state_bytes == 0
    assert run(engine, ScoreRequest(request.prompt, [Continuation((2, 3))])).cached_tokens >= 39


def test_cancelling_frees_everything(models):
    engine = Engine(models(), max_rows=4)
    handle = engine.score(ScoreRequest([1, 2], [Continuation((i, i, i)) for i in range(30)]))
    engine.step()
    handle.cancel()
    assert not engine.step() and engine.stats().state_bytes == 0
    with pytest.raises(UsageError, match="cancelled"):
        _ = handle.scores


def test_what_cannot_be_scored_is_refused(models):
    engine = Engine(models())
    for continuations, message in [
        ([], "at least one"),
        ([Continuation(())], "needs tokens"),
        ([Continuation((1, 2), 0)], "at least one of them is scored"),
        ([Continuation((1,), 2)], "needs tokens"),
        ([Continuation((VOCAB,))], "vocabulary"),
    ]:
        with pytest.raises(UsageError, match=message):
            engine.score(ScoreRequest([1], continuations))
    with pytest.raises(PromptError, match="don't fit"):
        engine.score(ScoreRequest([1] * (POSITIONS - 5), [Continuation((1,) * 7)]))
    engine.score(ScoreRequest([1] * (POSITIONS - 5), [Continuation((1,) * 6)]))
    while engine.step():
        pass


def test_scoring_passes_do_not_teach_what_drafts_are_worth(models):
    engine = Engine(models())
    run(engine, ScoreRequest([1, 2, 3], [Continuation((4, 5))]))
    assert not engine._costs.known
