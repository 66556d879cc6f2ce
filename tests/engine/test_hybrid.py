"""What hybrids add to the engine: constant state, faults that name their layer, experts read; and padded heads."""

from __future__ import annotations

import pytest
import torch

from trifolium.config import DecodeConfig
from trifolium.engine import Engine, Request
from trifolium.errors import NumericalError
from trifolium.model.state import AttentionState, DeltaNetState

FIXED = DecodeConfig(mode="ar", max_tokens=6, ignore_eos=True)


def test_delta_net_memory_is_constant_in_the_context(models, prompts):
    model = models(hybrid=True)
    sizes = []
    for length in (5, 40, 100):
        engine = Engine(model)
        handle = engine.add(Request([3] * length, decode=FIXED))
        engine.step()
        engine.step()
        layers = handle._live.state.layers
        sizes.append(
            (
                sum(layer.nbytes for layer in layers if isinstance(layer, DeltaNetState)),
                sum(layer.nbytes for layer in layers if isinstance(layer, AttentionState)),
            )
        )
    assert len({delta for delta, _ in sizes}) == 1
    assert sizes[0][1] < sizes[2][1]


@pytest.mark.parametrize(("layer", "what"), [(1, "delta-net state"), (3, "keys and values")])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_state_that_is_not_finite_stops_its_request_with_the_layers_name(models, prompts, layer, what, bad):
    """The request fails with the layer's name; another one in the same passes gives what it gives alone."""
    model = models(hybrid=True)
    good, spoiled = prompts(2, seed=3)
    alone = Engine(model).run([Request(good, decode=FIXED)])[0].token_ids
    engine = Engine(model)
    first, second = engine.add(Request(spoiled, decode=FIXED)), engine.add(Request(good, decode=FIXED))
    while first._live.passes == 0:
        engine.step()
    state = first._live.state.layers[layer]
    with torch.inference_mode():
        if isinstance(state, DeltaNetState):
            state.state = state.state.clone()
            state.state[0, 0, 0] = bad
        else:
            state.values[0, 0, 0] = bad
            state.keys[0, 0, 0] = bad
    while engine.step():
        pass
    with pytest.raises(NumericalError, match=rf"layer {layer}: NaN or infinity in its {what}|last layer"):
        _ = first.result
    assert second.result.token_ids == alone


def test_experts_read_are_counted(models, prompts):
    prompt = prompts(1)[0]
    for mode in ("ar", "verified", "diffusion"):
        decode = DecodeConfig(mode=mode, max_tokens=8, ignore_eos=True)
        (result,) = Engine(models(hybrid=True)).run([Request(prompt, decode=decode)])
        assert (result.experts_per_pass == 2.0) == (mode == "ar")  # one row reads its top two of five
        assert 2.0 <= result.experts_per_pass <= 5.0
        (dense,) = Engine(models()).run([Request(prompt, decode=decode)])
        assert dense.experts_per_pass == 0.0


def test_ids_without_a_token_are_never_banned_and_have_no_text(models, tokenizer, prompts):
    """A head may have more rows than the tokenizer has tokens: choosing one is the model's right."""
    model = models()
    prompt = prompts(1)[0]
    plain = Engine(model).run([Request(prompt, decode=FIXED)])[0]
    short = tokenizer_of(min(plain.token_ids))
    for mode in ("ar", "verified", "diffusion"):
        decode = FIXED.model_copy(update={"mode": mode, "drafts": "preview"})
        engine = Engine(model, short, eos_ids=frozenset())
        handle = engine.add(Request([token % short.vocab_size for token in prompt], decode=decode))
        while engine.step():
            pass
        assert handle.result.tokens == 6
    engine = Engine(model, short, eos_ids=frozenset())
    live = engine.add(Request(prompt, decode=FIXED))
    while engine.step():
        pass
    assert live.result.token_ids == plain.token_ids
    assert all(token >= short.vocab_size for token in plain.token_ids)
    assert live.result.text == ""


def tokenizer_of(size: int):
    """A tokenizer of the first `size` tokens only."""
    from trifolium.text import Tokenizer
    from trifolium.text.vocabulary import Vocabulary

    return Tokenizer(
        Vocabulary(
            pieces=[b"x%d" % i for i in range(max(size, 1))],
            encode_plain=lambda text, first: [],
            added=(),
            special_ids=frozenset(),
            eos_ids=frozenset(),
            eos_id=None,
            bos_id=None,
            eot_id=None,
            pad_id=None,
            unk_id=None,
            add_bos=False,
            add_eos=False,
            chat_template=None,
        )
    )
