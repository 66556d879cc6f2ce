"""The engine around decoding: prompts in chunks, limits, stop strings, cancelling, faults."""

from __future__ import annotations

import codecs
import random

import pytest
import torch

from random_models import without_kernels
from tiny_engine import build_model
from trifolium.config import DecodeConfig, SamplingParams
from trifolium.engine import Engine, FinishedEvent, Request, TextEvent
from trifolium.engine import scheduler as scheduling
from trifolium.errors import PromptError, UsageError
from trifolium.ops import native

GREEDY = SamplingParams()


def make(prompt, mode="verified", tokens=24, sampling=GREEDY, **options) -> Request:
    return Request(prompt, sampling, DecodeConfig(mode=mode, max_tokens=tokens, **options))


def full_forward(model, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens by the whole-sequence forward, nothing cached."""
    tokens = list(prompt)
    for _ in range(count):
        hidden, _ = model.commit_stream(torch.tensor([tokens]))
        tokens.append(int((hidden[0, -1] @ model.head.weight.T).argmax()))
    return tokens[len(prompt) :]


def test_decoding_equals_the_full_forward(models, prompts, answer):
    model, plain = models(tied=True), build_model(None, tied=True)
    for prompt in prompts(4):
        assert list(answer(model, make(prompt, "ar", 12))) == full_forward(plain, prompt, 12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_prompts_in_chunks(models, answer, monkeypatch, dtype):
    """Prefill passes, their count, and that verified equals AR after any number of chunks."""
    model = models(dtype)
    monkeypatch.setattr(scheduling, "CHUNK", 16)
    rng = random.Random(2)
    for length in (1, 2, 16, 17, 18, 33, 100):
        prompt = [rng.randrange(101) for _ in range(length)]
        result = Engine(model).run([make(prompt)])[0]
        assert result.prompt_passes == -(-(length - 1) // 16)
        assert result.prompt_tokens == length
        assert result.token_ids == answer(model, make(prompt, "ar"))


def test_the_answer_ends_with_the_context(models):
    model = models()
    limit = model.config.max_positions
    for mode in ("ar", "verified", "diffusion"):
        result = Engine(model).run([make([3] * (limit - 10), mode, 1000, block_size=7)])[0]
        assert (result.tokens, result.finish_reason) == (10, "length")
        assert Engine(model).run([make([3] * (limit - 1), mode)])[0].tokens == 1
        with pytest.raises(PromptError, match="context of 150"):
            Engine(model).add(make([3] * limit, mode))
    with pytest.raises(PromptError, match="empty"):
        Engine(model).add(make([]))
    with pytest.raises(PromptError, match="vocabulary"):
        Engine(model).add(make([101]))


@pytest.mark.parametrize("tokens", [1, 2, 3, 7])
def test_no_mode_overruns_max_tokens(models, prompts, oracle, answer, tokens):
    model = models()
    for prompt in prompts(3):
        truth = answer(model, make(prompt, "ar", 24))
        for mode in ("verified", "diffusion"):
            engine = Engine(model, extra_drafts=lambda request, t=truth: [oracle(t, 0, 1.0)])
            result = engine.run([make(prompt, mode, tokens)])[0]
            assert result.tokens == tokens and result.finish_reason == "length"
            assert mode == "diffusion" or result.token_ids == truth[:tokens]


def cut_by_hand(tokenizer, ids: list[int], stops: list[str]) -> tuple[str, int] | None:
    """Text before the first stop string to be complete, reading character by character, and the tokens up to there."""
    for count in range(len(ids) + 1):
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # holds back an incomplete character only
        text = decoder.decode(tokenizer.decode_bytes(ids[:count], skip_special=True), final=count == len(ids))
        for end in range(len(text) + 1):
            for stop in sorted(stops, key=len, reverse=True):
                if text[:end].endswith(stop):
                    return text[: end - len(stop)], count
    return None


def test_stop_strings_cut_the_same_everywhere(models, tokenizer, oracle, answer):
    """Sampled answers of tokens with partial characters and shared prefixes; stops straddle tokens and blocks."""
    model = models()
    rng = random.Random(8)
    stopped = 0
    for seed in range(40):
        sampling = SamplingParams(temperature=2.5, top_k=40, seed=seed)
        prompt = [rng.randrange(22) for _ in range(6)]
        options = {"tokens": 40, "sampling": sampling, "ignore_eos": True}
        ids = list(Engine(model, tokenizer).run([make(prompt, "ar", **options)])[0].token_ids)
        whole = tokenizer.decode(ids, skip_special=True)
        start = rng.randrange(max(1, len(whole) - 3))
        stops = [whole[start : start + rng.randint(1, 5)] or "stop", "stop", "€☘", "w3w"]
        expected = cut_by_hand(tokenizer, ids, stops)
        for mode in ("ar", "verified"):
            engine = Engine(model, tokenizer, extra_drafts=lambda request, t=ids, s=seed: [oracle(t, s, 0.8)])
            handle = engine.add(make(prompt, mode, stop=tuple(stops), **options))
            while engine.step():
                pass
            result = handle.result
            shown = "".join(event.text for event in handle.events() if isinstance(event, TextEvent))
            assert shown == result.text
            if expected is None:
                assert (result.text, list(result.token_ids), result.stop) == (whole, ids, None)
            else:
                text, count = expected
                assert (result.text, list(result.token_ids)) == (text, ids[:count])
                assert result.finish_reason == "stop" and result.stop in stops
        stopped += expected is not None
    assert stopped > 12


def test_an_end_token_ends_the_answer_and_is_not_part_of_it(models, tokenizer, prompts, oracle):
    model = models()
    for prompt in prompts(4, seed=5):
        ids = Engine(model).run([make(prompt, "ar", 30)])[0].token_ids
        eos = ids[9]
        for mode in ("ar", "verified"):
            engine = Engine(model, eos_ids=frozenset({eos}), extra_drafts=lambda request, t=ids: [oracle(t, 1, 0.9)])
            result = engine.run([make(prompt, mode, 30)])[0]
            assert result.token_ids == ids[: ids.index(eos)] and result.finish_reason == "stop"
            assert result.stop is None


def test_cancelling(models, prompts):
    engine = Engine(models(), max_running=1)
    running, waiting, last = (engine.add(make(prompt, tokens=30)) for prompt in prompts(3))
    for _ in range(5):
        engine.step()
    running.cancel()
    waiting.cancel()
    assert running.done and waiting.done and not last.done
    assert 0 < running.result.tokens < 30 and running.result.finish_reason == "cancelled"
    assert waiting.result.tokens == 0 and running._live.state.nbytes == 0
    while engine.step():
        pass
    assert last.result.tokens == 30
    assert [type(e) for e in last.events()][-1] is FinishedEvent
    last.cancel()
    assert last.result.finish_reason == "length"


class Exploding:
    def __init__(self, after: int) -> None:
        self.left = after

    def push(self, token: int) -> None:
        if not self.left:
            raise RuntimeError("broken source")
        self.left -= 1

    def propose(self, limit: int):
        if not self.left:
            raise RuntimeError("broken source")
        from trifolium.engine.drafts import Draft

        return Draft()


@pytest.mark.parametrize("after", [0, 3])
def test_a_faulty_request_fails_alone(models, prompts, answer, after):
    model = models()
    requests = [make(prompt) for prompt in prompts(4)]
    truths = [answer(model, make(request.prompt, "ar")) for request in requests]
    engine = Engine(model, extra_drafts=lambda r: [Exploding(after)] if r is requests[2] else [])
    handles = [engine.add(request) for request in requests]
    while engine.step():
        pass
    for i, handle in enumerate(handles):
        if i == 2:
            with pytest.raises(RuntimeError, match="broken source"):
                _ = handle.result
        else:
            assert handle.result.token_ids == truths[i]


def test_proposals_that_fail_end_only_their_request(models, prompts, answer, monkeypatch):
    model = models()
    requests = [make(prompt, drafts="preview") for prompt in prompts(3)]
    engine = Engine(model)
    handles = [engine.add(request) for request in requests]
    victim, original = handles[1]._live.sampler, engine._proposer.propose

    def propose(asks):
        if any(ask.sampler is victim for ask in asks):
            raise FloatingPointError("no proposals today")
        return original(asks)

    monkeypatch.setattr(engine._proposer, "propose", propose)
    while engine.step():
        pass
    with pytest.raises(FloatingPointError):
        _ = handles[1].result
    for handle, request in zip(handles[::2], requests[::2], strict=True):
        assert handle.result.token_ids == answer(model, make(request.prompt, "ar"))


def test_inexact_products_are_noted(prompts, monkeypatch):
    """Without native kernels, bfloat16 rounds by the number of rows: verified runs, and says that it may differ."""
    if native.native().library is not None:
        assert not Engine(build_model(torch.bfloat16)).run([make(prompts(1)[0])])[0].notes
    without_kernels(monkeypatch)
    model = build_model(torch.bfloat16)
    result = Engine(model).run([make(prompts(1)[0])])[0]
    assert result.tokens == 24 and any("may differ" in note for note in result.notes)
    assert not Engine(model).run([make(prompts(1)[0], "ar")])[0].notes
    assert not Engine(build_model(torch.int8)).run([make(prompts(1)[0])])[0].notes


def test_first_come_first_served(models, prompts):
    engine = Engine(models(), max_running=2)
    handles = [engine.add(make(prompt, tokens=10)) for prompt in prompts(5)]
    finished: list[int] = []
    while engine.step():
        running = sum(bool(h._live.passes) and not h.done for h in handles)
        assert running <= 2
        finished += [h.id for h in handles if h.done and h.id not in finished]
    assert sorted(finished[:2]) == [0, 1]
    with pytest.raises(UsageError, match="still running"):
        _ = engine.add(make([1])).result


def test_without_an_adapter_verified_drafts_from_the_text_and_says_so(models, prompts, answer):
    model = models(adapter=False)
    prompt = prompts(1)[0]
    for drafts, notes in [("both", 1), ("preview", 1), ("ngram", 0)]:
        result = Engine(model).run([make(prompt, drafts=drafts)])[0]
        assert result.token_ids == answer(model, make(prompt, "ar"))
        assert result.drafts == "ngram" and len(result.notes) == notes


def test_the_result_counts_what_was_done(models, prompts):
    result = Engine(models()).run([make(prompts(2)[1], drafts="both")])[0]
    assert set(result.as_dict()) == {
        *("text", "token_ids", "prompt_tokens", "cached_tokens", "tokens", "passes", "tokens_per_pass", "seconds"),
        *("tokens_per_second", "prompt_passes", "prompt_seconds", "load_seconds", "accepted_by", "finish_reason"),
        "experts_per_pass",
        *("mode", "drafts", "model", "dtype"),
    }
    assert set(result.accepted_by) == {"preview", "ngram"}
    assert result.tokens_per_pass == result.tokens / result.passes
    assert result.seconds > 0 and result.tokens_per_second == result.tokens / result.seconds
