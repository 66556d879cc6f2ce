"""Passes of commit rows: cached continuation equals the full forward, and a row's bits never depend on its company."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import Plain
from torch import Tensor

from random_models import random_model, random_tokens, tiny_config, tiny_hybrid, with_threads, without_kernels
from trifolium.config import ModelConfig
from trifolium.model import MASK, RequestRows, RequestState, Rows, Transformer
from trifolium.model.state import AttentionState
from trifolium.ops import native

BORDERS = (1, 62, 63, 64, 65, 127, 128)
DRAFTED = 5
CONFIGS = {
    "llama": tiny_config("llama", qkv_bias=True, out_bias=True, mlp_bias=True),
    "qwen3": tiny_config("qwen3", num_heads=4, num_kv_heads=1, head_dim=10),
    "hybrid": tiny_hybrid(),
    # No multiple of a vector, and large enough for torch to share a pass between threads.
    "wide": tiny_config("qwen2", hidden_size=129, intermediate_size=1501, num_kv_heads=3, num_layers=2, vocab_size=331),
}


@pytest.fixture(scope="module")
def models() -> Callable[[str, torch.dtype], Transformer]:
    made: dict[tuple[str, torch.dtype], Transformer] = {}

    def get(name: str, dtype: torch.dtype) -> Transformer:
        if (name, dtype) not in made:
            made[name, dtype] = random_model(CONFIGS[name], dtype)
        return made[name, dtype]

    return get


def run(model: Transformer, *requests: RequestRows) -> Tensor:
    """Hidden vectors of one decoding pass."""
    return model.rows(Rows.build(requests, tile=model.tiled))


def prefill(model: Transformer, tokens: Sequence[int], chunk: int = 48) -> RequestState:
    """A state that holds `tokens`, committed in chunks."""
    state = model.new_state()
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        model.rows(Rows.build([RequestRows(state, part)], prefill=True))
        state.accept(len(part))
    return state


def test_full_forward_is_the_plain_model() -> None:
    """The float64 loops agree with commit_stream, so what agrees with one agrees with the other."""
    for config in (CONFIGS["llama"], CONFIGS["qwen3"], CONFIGS["hybrid"], tiny_config("qwen2", tie_embeddings=True)):
        model = random_model(config)
        tokens = random_tokens(config, 20)
        plain = Plain(model)
        expected = torch.stack([plain.commit(t) for t in tokens]).float()
        # Norms that scale by 1 + weight make the hybrid's vectors larger.
        atol = 1e-3 if config.norm_offset else 1e-5
        assert torch.allclose(model.commit_stream(torch.tensor([tokens]))[0][0], expected, rtol=1e-4, atol=atol)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(data=st.data(), name=st.sampled_from(["llama", "qwen3", "hybrid"]))
def test_cached_continuation_equals_full_forward(
    models: Callable[[str, torch.dtype], Transformer], data: st.DataObject, name: str
) -> None:
    """Prompt chunks, single rows and fused passes of right and wrong drafts, in any order."""
    model = models(name, torch.float32)
    tokens = random_tokens(model.config, 150)
    state = model.new_state()
    hidden: list[Tensor] = []
    while state.length < len(tokens):
        left = len(tokens) - state.length
        if data.draw(st.booleans(), "prefill"):
            chunk = tokens[state.length : state.length + data.draw(st.integers(1, min(70, left)), "chunk")]
            hidden += model.rows(Rows.build([RequestRows(state, chunk)], prefill=True))
            state.accept(len(chunk))
            continue
        right = data.draw(st.integers(1, min(20, left)), "right")
        wrong = data.draw(st.integers(0, 4), "wrong")
        drafts = tokens[state.length : state.length + right] + random_tokens(model.config, wrong, seed=wrong)
        blocks = [(n, [MASK] * 3) for n in data.draw(st.sets(st.integers(1, len(drafts)), max_size=3), "branches")]
        hidden += run(model, RequestRows(state, drafts, blocks))[:right]
        state.accept(right)
    full = model.commit_stream(torch.tensor([tokens]))[0][0]
    assert torch.allclose(torch.stack(hidden), full, rtol=1e-4, atol=1e-3 if name == "hybrid" else 2e-5)


def bits(model: Transformer, state: RequestState, hidden: Tensor) -> list[Tensor]:
    """What must be the same: hidden vectors, logits, and the cells that count."""
    kept: list[Tensor] = []
    for layer in state.layers:
        if isinstance(layer, AttentionState):
            kept += [layer.keys[:, : state.length], layer.values[:, : state.length]]
        else:
            kept += [layer.state, layer.ring]
    return [hidden, model.logits(hidden), *kept]


def alone(model: Transformer, state: RequestState, tokens: Sequence[int]) -> list[Tensor]:
    hidden = []
    for token in tokens:
        hidden.append(run(model, RequestRows(state, [token]))[0])
        state.accept(1)
    return bits(model, state, torch.stack(hidden))


def one_pass(
    model: Transformer,
    state: RequestState,
    tokens: Sequence[int],
    before: Sequence[RequestRows] = (),
    after: Sequence[RequestRows] = (),
    blocks: Sequence[tuple[int, Sequence[int]]] = (),
) -> list[Tensor]:
    hidden = run(model, *before, RequestRows(state, tokens, blocks), *after)
    start = sum(len(r.commit) for r in before)
    state.accept(len(tokens))
    return bits(model, state, hidden[start : start + len(tokens)])


def same_bits(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def check_company(model: Transformer, context: int) -> None:
    """A request's rows alone, and in every company that a pass can offer."""
    config = model.config
    prompt, drafts = random_tokens(config, context), random_tokens(config, DRAFTED, seed=4)
    start = prefill(model, prompt)
    expected = alone(model, copy.deepcopy(start), drafts)

    def other(length: int, rows: int, blocks: Sequence[tuple[int, Sequence[int]]] = ()) -> RequestRows:
        state = prefill(model, random_tokens(config, length, seed=length))
        return RequestRows(state, random_tokens(config, rows, seed=rows), blocks)

    canvas = [MASK, 5, MASK, MASK]
    branches = [(n, canvas) for n in range(1, DRAFTED + 1)]
    companies: dict[str, list[Tensor]] = {
        "k drafts": one_pass(model, copy.deepcopy(start), drafts),
        "own previews": one_pass(model, copy.deepcopy(start), drafts, blocks=branches),
        "others before": one_pass(model, copy.deepcopy(start), drafts, [other(70, 1), other(3, 2)]),
        "many rows": one_pass(model, copy.deepcopy(start), drafts, [other(9, 13)], [other(20, 37)]),
        "everything": one_pass(
            model, copy.deepcopy(start), drafts, [other(64, 18, [(1, canvas)])], [other(1, 1, [(1, canvas)])], branches
        ),
    }
    roomy = copy.deepcopy(start)
    roomy.reserve(1000)
    companies["room to spare"] = one_pass(model, roomy, drafts)
    for name, got in companies.items():
        assert same_bits(got, expected), f"{name}, context {context}"
    halves = copy.deepcopy(start)
    first = one_pass(model, halves, drafts[:2], [other(5, 3)])
    second = one_pass(model, halves, drafts[2:], after=[other(5, 3)])
    assert torch.equal(torch.cat((first[0], second[0])), expected[0]), f"two passes, context {context}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen3", "hybrid"])
def test_company_changes_no_bit(
    models: Callable[[str, torch.dtype], Transformer], name: str, dtype: torch.dtype
) -> None:
    for context in BORDERS:
        check_company(models(name, dtype), context)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_company_changes_no_bit_on_any_number_of_threads(
    models: Callable[[str, torch.dtype], Transformer], dtype: torch.dtype, threads: int
) -> None:
    for context in (63, 128):
        with_threads(threads, lambda context=context: check_company(models("wide", dtype), context))


@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_company_changes_no_bit_without_native_kernels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    without_kernels(monkeypatch)
    model = random_model(CONFIGS[name])
    assert model.tiled
    for context in (1, 64):
        check_company(model, context)


@pytest.mark.skipif(native.native().library is None, reason="no native kernels")
@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_company_changes_no_bit_in_bfloat16(models: Callable[[str, torch.dtype], Transformer], name: str) -> None:
    check_company(models(name, torch.bfloat16), 65)


def test_exact_and_tiled_say_what_the_kernels_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for fast in (True, False):
        if not fast:
            without_kernels(monkeypatch)
        elif native.native().library is None:
            continue
        wanted = {torch.float32: (True, not fast), torch.int8: (True, False), torch.bfloat16: (fast, False)}
        for dtype, flags in wanted.items():
            model = random_model(CONFIGS["llama"], dtype)
            assert (model.exact, model.tiled) == flags


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("garbage", [-1e30, 3e38])
def test_scratch_is_never_observed(
    models: Callable[[str, torch.dtype], Transformer], dtype: torch.dtype, garbage: float
) -> None:
    """Cells past the length may hold anything finite: commit and preview rows come out the same."""
    model = models("llama", dtype)
    for context in (1, 63, 64, 127):
        clean = prefill(model, random_tokens(model.config, context))
        clean.reserve(320)
        dirty = copy.deepcopy(clean)
        for layer in dirty.layers:
            layer.keys[:, context:] = garbage
            layer.values[:, context:] = garbage
        for rows in (3, 1, 9):
            requests = [RequestRows(s, list(range(rows)), [(rows, [MASK] * 4), (1, [7, MASK])]) for s in (clean, dirty)]
            assert torch.equal(run(model, requests[0]), run(model, requests[1]))
            assert torch.equal(run(model, *requests)[:rows], run(model, *requests)[rows : 2 * rows])
            clean.accept(1)
            dirty.accept(1)


@pytest.mark.parametrize("name", ["llama", "hybrid"])
def test_rejected_drafts_leave_no_trace(models: Callable[[str, torch.dtype], Transformer], name: str) -> None:
    model = models(name, torch.float32)
    fresh = prefill(model, random_tokens(model.config, 60))
    used = copy.deepcopy(fresh)
    for drafts in ([3, 4, 5, 6, 7, 8], [9] * 90):
        run(model, RequestRows(used, drafts, [(2, [MASK] * 5)]))
    assert same_bits(alone(model, used, [1, 2, 3]), alone(model, fresh, [1, 2, 3]))


def test_logits_are_the_head_of_each_row(models: Callable[[str, torch.dtype], Transformer]) -> None:
    """For any number of rows, none included, exact logits are those of each row alone; inexact ones are close."""
    for dtype in (torch.float32, torch.int8):
        model = models("llama", dtype)
        hidden = torch.randn(37, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
        each = torch.cat([model.logits(row[None]) for row in hidden])
        for count in (1, 15, 16, 17, 37):
            assert torch.equal(model.logits(hidden[:count]), each[:count])
        assert model.logits(hidden[:0]).shape == (0, model.config.vocab_size)
        assert torch.allclose(model.logits(hidden, exact=False), each, rtol=1e-4, atol=1e-5)


def test_config_names_differ() -> None:
    """The sizes of the test model are all different, so a mix-up of two can't pass."""
    c: ModelConfig = tiny_config()
    sizes = [c.vocab_size, c.hidden_size, c.intermediate_size, c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim]
    sizes += [c.q_size, c.kv_size, c.q_size + 2 * c.kv_size]
    assert len(set(sizes)) == len(sizes)
