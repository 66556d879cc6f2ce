"""Diffusion decoding: what AR gives where nothing is parallel, and its bookkeeping where something is."""

from __future__ import annotations

import pytest
import torch

from trifolium.config import DecodeConfig, SamplingParams
from trifolium.engine import CanvasEvent, Engine, Request, TextEvent
from trifolium.errors import UsageError
from trifolium.model import RequestRows, Rows

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=4)


def make(prompt, sampling=GREEDY, **options) -> Request:
    return Request(prompt, sampling, DecodeConfig(**{"mode": "diffusion", "max_tokens": 24, **options}))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_blocks_of_one_are_ar(models, prompts, answer, sampling, dtype):
    model = models(dtype)
    for prompt in prompts(4):
        assert answer(model, make(prompt, sampling, block_size=1)) == answer(model, make(prompt, sampling, mode="ar"))


@pytest.mark.parametrize("remask", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize(
    "policy",
    [
        {"policy": "threshold", "threshold": 0.2},
        {"policy": "threshold", "threshold": 1.0},
        {"policy": "entropy", "entropy_bound": 3.0},
        {"policy": "top_n", "top_n": 2},
    ],
    ids=str,
)
def test_every_policy_fills_every_block(models, prompts, policy, sampling, remask):
    model = models()
    for block in (2, 5, 13):
        for prompt in prompts(1, seed=block):
            result = Engine(model).run([make(prompt, sampling, block_size=block, remask=remask, **policy)])[0]
            assert result.tokens == 24 and result.finish_reason == "length"
            # At least one position a pass; a position is masked again at most once.
            assert result.passes <= 24 * (2 if remask else 1)
            again = Engine(model).run([make(prompt, sampling, block_size=block, remask=remask, **policy)])[0]
            assert again.token_ids == result.token_ids


def test_one_position_a_pass_or_all_at_once(models, prompts):
    model = models()
    for prompt in prompts(3):
        slow = Engine(model).run([make(prompt, block_size=6, policy="top_n")])[0]
        fast = Engine(model).run([make(prompt, block_size=6, threshold=0.0)])[0]
        # A block's first pass brings the position that its commit row predicts, and one more.
        assert slow.passes == 4 * 5 and fast.passes == 4


def by_hand(model, prompt: list[int], blocks: int, size: int) -> list[int]:
    """Blocks that one pass fills, by plain calls: a causal pass over everything final, then masks on fresh states."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(blocks):
            state = model.new_state()
            hidden = model.rows(
                Rows.build([RequestRows(state, tokens, [(len(tokens), [-1] * (size - 1))])], tile=model.tiled)
            )
            tokens.append(int(model.logits(hidden[len(tokens) - 1 : len(tokens)]).argmax()))
            tokens += model.logits(hidden[-(size - 1) :], exact=False).argmax(-1).tolist()
    return tokens[len(prompt) :]


def test_each_block_reads_the_committed_state(models, prompts, answer):
    """A block of parallel masks equals one on a state that was computed causally from all earlier tokens."""
    model = models(chain=0)
    for prompt in prompts(4, seed=2):
        assert list(answer(model, make(prompt, block_size=5, threshold=0.0, max_tokens=15))) == by_hand(
            model, prompt, 3, 5
        )


@pytest.mark.parametrize("remask", [False, True])
def test_text_only_grows_and_the_canvas_shows_the_rest(models, prompts, tokenizer, remask):
    engine = Engine(models(chain=0), tokenizer, eos_ids=frozenset())
    handle = engine.add(make(prompts(1)[0], block_size=6, policy="top_n", top_n=2, remask=remask))
    events = []
    while not handle.done:
        engine.step()
        events += handle.events()
    canvases = [event for event in events if isinstance(event, CanvasEvent)]
    texts = [event for event in events if isinstance(event, TextEvent)]
    assert tuple(token for event in texts for token in event.token_ids) == handle.result.token_ids
    assert "".join(event.text for event in texts) == handle.result.text
    cells = [cell for event in canvases for cell in event.cells]
    assert all((cell.token is None) == (cell.state == "masked") for cell in cells)
    assert any(cell.state == "accepted" for cell in cells) == (not remask)
    assert all(len(event.texts) == len(event.cells) for event in canvases)


def test_an_end_token_inside_a_block_ends_the_answer(models, prompts):
    model = models()
    for prompt in prompts(4, seed=7):
        whole = Engine(model).run([make(prompt, block_size=6, threshold=0.0)])[0].token_ids
        for place in (0, 3, 8):
            eos = whole[place]
            result = Engine(model, eos_ids=frozenset({eos})).run([make(prompt, block_size=6, threshold=0.0)])[0]
            assert result.token_ids == whole[: whole.index(eos)] and result.finish_reason == "stop"
            kept = Engine(model, eos_ids=frozenset({eos})).run(
                [make(prompt, block_size=6, threshold=0.0, ignore_eos=True)]
            )[0]
            assert kept.token_ids == whole


def test_diffusion_without_an_adapter_is_refused(models):
    with pytest.raises(UsageError, match="adapter"):
        Engine(models(adapter=False)).add(make([1, 2]))
