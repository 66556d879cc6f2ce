"""Fidelity of dtypes, against numbers that are computed here in another way."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import trifolium
from tiny_engine import build_model, write_folder
from trifolium.dtypes import DTYPES
from trifolium.errors import UsageError
from trifolium.evaluate import fidelity
from trifolium.evaluate.fidelity import Sample, common_prefix, compare, first_differences, score
from trifolium.model import Transformer
from trifolium.model.linear import Linear
from trifolium.ops import native

CONVERSATIONS = [
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "It is a clover, with three leaves."},
    ],
    [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Count to three."}],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("fidelity") / "tiny").path


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, fidelity.Fidelity]:
    compared = compare(
        lambda dtype: trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype=dtype),
        DTYPES, CONVERSATIONS, max_tokens=20,
    )  # fmt: skip
    return {each.dtype: each for each in compared}


def samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(4)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(101, (count,), generator=generator).tolist())

    return [Sample(draw(prompt), draw(answer)) for prompt, answer in ((1, 1), (13, 17), (3, 7))]


def whole(model: Transformer) -> torch.Tensor:
    """log p [25, V] at every answer token, by full forwards of a model that isn't packed."""
    parts = []
    with torch.no_grad():
        for sample in samples():
            hidden, _ = model.commit_stream(torch.tensor([[*sample.prompt, *sample.answer[:-1]]]))
            parts.append(model.vocabulary_logits(hidden)[0, len(sample.prompt) - 1 :].double().log_softmax(-1))
    return torch.cat(parts)


@pytest.fixture
def small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fidelity, "WIDTH", 7)
    monkeypatch.setattr(fidelity, "CHUNK", 5)


@pytest.mark.parametrize("hybrid", [False, True])
def test_scores_are_those_of_whole_sequences(hybrid: bool, small_passes: None) -> None:
    model = build_model(torch.float32, hybrid=hybrid)
    scores = score(model, model, samples())
    assert torch.equal(scores.kl, torch.zeros(25).double()) and scores.agrees.all()
    targets = torch.tensor([token for sample in samples() for token in sample.answer])
    surprise = F.nll_loss(whole(build_model(None, hybrid=hybrid)), targets, reduction="none")
    assert torch.allclose(scores.surprise, surprise, atol=1e-3)


@pytest.mark.skipif(native.native().library is None, reason="torch's own products round activations as well")
def test_divergence_is_the_definition(small_passes: None) -> None:
    """Native bfloat16 is float32 with rounded weights: the same divergence as between two plain models."""
    scores = score(build_model(torch.float32), build_model(torch.bfloat16), samples())
    rounded = build_model(None)
    for module in rounded.modules():
        if isinstance(module, Linear):
            module.weight = torch.nn.Parameter(module.weight.bfloat16().float(), requires_grad=False)
    p, q = whole(build_model(None)), whole(rounded)
    kl = (p.exp() * (p - q)).sum(-1)
    assert kl.min() > 1e-6
    assert torch.allclose(scores.kl, kl, rtol=0.02)
    assert torch.equal(scores.agrees, p.argmax(-1) == q.argmax(-1))
    targets = torch.tensor([token for sample in samples() for token in sample.answer])
    assert torch.allclose(scores.surprise, F.nll_loss(q, targets, reduction="none"), atol=1e-3)


def test_float32_is_the_reference(found: dict[str, fidelity.Fidelity]) -> None:
    assert list(found) == list(DTYPES)
    own = found["float32"]
    assert own.kl_mean == own.kl_p99 == 0 and own.agreement == own.alike_answers == 1
    assert own.alike_tokens == own.answer_tokens <= 20
    assert own.answers == 3 and 20 < own.tokens <= 60
    assert own.exact and own.verified_differs is None


def test_other_dtypes_differ_from_it(found: dict[str, fidelity.Fidelity]) -> None:
    for dtype in ("bfloat16", "int8"):
        each = found[dtype]
        assert 0 < each.kl_mean < each.kl_p99 < 1 and each.tokens == found["float32"].tokens
        assert 0.5 < each.agreement <= 1
        assert each.alike_tokens <= each.answer_tokens and each.alike_answers <= 1
        assert each.perplexity == pytest.approx(found["float32"].perplexity, rel=0.2)
    assert found["bfloat16"].kl_mean < found["int8"].kl_mean


def test_given_answers_are_read_and_missing_ones_made(folder: Path) -> None:
    """A conversation with an answer is scored on that answer, cut; one without on the model's own."""
    lm = trifolium.load(folder, adapter=None, dtype="float32")
    (own,) = compare(lambda dtype: lm, ["float32"], CONVERSATIONS[1:2], max_tokens=9)
    prompt, answer = lm.encode(CONVERSATIONS[1][:1]), lm.tokenizer.encode("It is a clover with leaves.")[:9]
    scores = score(lm.model, lm.model, [Sample(tuple(prompt), tuple(answer))])
    assert own.tokens == 9 and own.perplexity == pytest.approx(math.exp(float(scores.surprise.mean())))
    (made,) = compare(lambda dtype: lm, ["float32"], CONVERSATIONS[:1], max_tokens=9)
    assert made.tokens == len(lm.generate("Hello", mode="ar", max_tokens=9).token_ids)
    assert made.perplexity < own.perplexity  # its own first choices surprise it least


def test_where_rows_depend_on_each_other_the_rate_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    compared = compare(
        lambda dtype: trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype=dtype),
        ["bfloat16"], CONVERSATIONS[:1], max_tokens=12,
    )  # fmt: skip
    assert [each.exact for each in compared] == [True, False]
    rate = compared[1].verified_differs
    assert rate is not None and 0 <= rate <= 1
    table = fidelity.markdown(compared).splitlines()
    assert "equal by construction" in table[2]
    assert ("no difference met" if rate == 0 else "first differs after") in table[3]


def test_differences() -> None:
    assert common_prefix((1, 2, 3), (1, 2, 4, 5)) == 2
    assert common_prefix((1, 2), (1, 2, 3)) == 2
    assert common_prefix((), (1,)) == 0
    assert first_differences([(1, 2, 3), (4, 5)], [(1, 2, 3), (4, 5)]) == 0
    assert first_differences([(1, 2, 3), (4, 5, 6)], [(1, 9, 3), (4, 5, 6)]) == 1 / (1 + 3 + 1)
    assert first_differences([(1, 2)], [(1, 2, 3)]) == 1 / 3


def test_conversations_come_from_prompts_and_from_corpora(tmp_path: Path) -> None:
    assert len(fidelity.read_conversations(None)) == 32
    assert len(fidelity.read_conversations(None, 3)) == 3
    corpus = tmp_path / "corpus.jsonl.gz"
    lines = [
        {"messages": [{"role": "user", "content": f"Question {i}"}, {"role": "assistant", "content": "Yes"}]}
        for i in range(400)
    ]
    corpus.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    held_out = fidelity.read_conversations(corpus)
    assert 2 <= len(held_out) <= 20
    assert fidelity.read_conversations(corpus, 2) == held_out[:2]
    corpus.write_bytes(gzip.compress(b""))
    with pytest.raises(UsageError, match="no held-out"):
        fidelity.read_conversations(corpus)


def test_names_of_dtypes() -> None:
    assert fidelity.dtypes_to_compare(None) == list(DTYPES)
    assert fidelity.dtypes_to_compare("int8, float32") == ["float32", "int8"]
    with pytest.raises(UsageError, match="unknown dtype 'int3': choose from float32"):
        fidelity.dtypes_to_compare("int8,int3")


def test_empty_answers_are_no_text(folder: Path) -> None:
    lm = trifolium.load(folder, adapter=None, dtype="float32")
    lm.engine._eos_ids = frozenset(range(lm.tokenizer.vocab_size))
    with pytest.raises(UsageError, match="every answer is empty"):
        compare(lambda dtype: lm, ["float32"], CONVERSATIONS[:1], max_tokens=9)


@pytest.mark.real
def test_real_answers_of_the_default_model(default_gguf: Path) -> None:
    """The model's own answers, made in bfloat16 long ago: it finds them likely in every dtype."""
    data = Path(__file__).parents[3] / "shared" / "data" / "smollm2-selfgen.jsonl.gz"
    if not data.is_file():
        pytest.skip(f"{data} is not here")
    conversations = fidelity.read_conversations(data, 3)
    compared = compare(
        lambda dtype: trifolium.load(default_gguf, adapter=None, dtype=dtype), ["int8"], conversations, max_tokens=24
    )
    assert [each.tokens for each in compared] == [72, 72]
    assert 1 < compared[0].perplexity < 4  # a uniform guess would have 49,152
    assert compared[1].perplexity == pytest.approx(compared[0].perplexity, rel=0.1)
    assert 0 < compared[1].kl_mean < 0.1 and compared[1].agreement > 0.85
