"""Incremental detokenising: the pieces are the whole, and no piece is ever taken back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trifolium.errors import UsageError
from trifolium.text import IncrementalDetokenizer, Tokenizer


@pytest.fixture(scope="module")
def tokenizers(bpe_vocab: Callable[[str], Any], scored_vocab: Callable[..., Any]) -> list[Tokenizer]:
    return [Tokenizer.from_gguf(bpe_vocab("smollm").fields()), Tokenizer.from_gguf(scored_vocab().fields())]


def texts(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Ids of real text, which break within characters, mixed with any ids, whose bytes are often invalid."""
    encoded = st.text(st.characters(codec="utf-8"), max_size=6).map(lambda text: tokenizer.encode(text, special=False))
    anything = st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=6)
    singles = [i for i in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(i)) == 1]
    broken = st.lists(st.sampled_from(singles), max_size=6)
    return st.lists(st.one_of(encoded, anything, broken), max_size=6).map(lambda parts: [*chain(*parts)])


@pytest.mark.parametrize("which", [0, 1])
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), skip=st.booleans())
def test_pushes_of_any_split_give_the_whole_text(tokenizers, which: int, data: st.DataObject, skip: bool) -> None:
    tokenizer = tokenizers[which]
    ids = data.draw(texts(tokenizer))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip)
    whole = tokenizer.decode(ids, skip_special=skip)
    shown = ""
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        shown += detokenizer.push(ids[start:stop])
        assert whole.startswith(shown)
    assert shown + detokenizer.finish() == whole


def test_a_character_is_shown_when_it_is_complete(tokenizers: list[Tokenizer]) -> None:
    tokenizer = tokenizers[0]
    by_byte = {tokenizer.token_bytes(i): i for i in range(tokenizer.vocab_size)}
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = [detokenizer.push([by_byte[bytes([byte])]]) for byte in "a👍b".encode()]
    assert shown == ["a", "", "", "", "👍", "b"]
    assert detokenizer.push([by_byte[b"\xf0"]]) == ""
    assert detokenizer.push([by_byte[b"\x9f"]]) == ""
    assert detokenizer.push([by_byte[b"x"]]) == "\ufffdx"
    assert detokenizer.push([by_byte[b"\xe4"]]) == ""
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


def test_special_tokens_are_skipped_unless_asked_for(tokenizers: list[Tokenizer]) -> None:
    ids = tokenizers[0].encode("a<|im_end|>b")
    assert IncrementalDetokenizer(tokenizers[0]).push(ids) == "ab"
    assert IncrementalDetokenizer(tokenizers[0], skip_special=False).push(ids) == "a<|im_end|>b"


def test_unknown_ids_are_refused(tokenizers: list[Tokenizer]) -> None:
    with pytest.raises(UsageError, match="outside the vocabulary"):
        IncrementalDetokenizer(tokenizers[0]).push([10**9])
