"""GGUF vocabularies: every id must be the one that llama.cpp gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trifolium.errors import CorruptFileError, NotFoundError, UnsupportedModelError, UsageError
from trifolium.text import Tokenizer
from trifolium.text.pretokenizers import known_schemes


def assert_equal_ids(ours: Tokenizer, theirs: Any, texts: Sequence[str]) -> None:
    for text in texts:
        for special in (True, False):
            assert ours.encode(text, special=special) == theirs.encode(text, special=special), (text, special)


@pytest.mark.parametrize("pre", known_schemes())
def test_every_split_scheme_gives_the_ids_of_llama_cpp(pre, bpe_vocab, llama_cpp, awkward, tmp_path) -> None:
    path = bpe_vocab(pre).write(tmp_path / "model.gguf")
    ours = Tokenizer.from_gguf(path)
    assert_equal_ids(ours, llama_cpp(path), awkward)
    for text in awkward:
        assert ours.decode(ours.encode(text)) == text
        assert ours.decode(ours.encode(text, special=False)) == text


def test_bytes_without_a_token_part_their_neighbours(bpe_vocab, llama_cpp, awkward, tmp_path) -> None:
    vocab = bpe_vocab("smollm")
    # The bytes F3, 01 and A4, as byte-level BPE writes them; A4 stands within merges of Devanagari.
    vocab.tokens = ["unused" + text if text in ("ó", "ā", "¤") else text for text in vocab.tokens]
    vocab.merges = [merge for merge in vocab.merges if not {"ó", "ā", "¤"} & set(merge)]
    vocab.tokens = [
        text if "¤" not in text or text[:6] == "unused" else f"gone{n}" for n, text in enumerate(vocab.tokens)
    ]
    path = vocab.write(tmp_path / "model.gguf")
    texts = [*awkward, "\U000c940e\U000b70ad", "\u0826\U00042be2", "aó\x01b", "e\x01\u0301"]
    assert_equal_ids(Tokenizer.from_gguf(path), llama_cpp(path), texts)


@pytest.mark.parametrize("space_prefix", [True, False])
def test_sentencepiece_gives_the_ids_of_llama_cpp(space_prefix, scored_vocab, llama_cpp, awkward, tmp_path) -> None:
    path = scored_vocab(add_space_prefix=space_prefix).write(tmp_path / "model.gguf")
    ours, theirs = Tokenizer.from_gguf(path), llama_cpp(path)
    assert_equal_ids(ours, theirs, [*awkward, "a" * 37, "aaa aaaa  aaaaa " * 9, "第章漢字"])
    for text in awkward:
        if text and "<think>" not in text:  # each added token would be followed by a space of its own
            assert ours.decode(ours.encode(text, special=False)) == " " * space_prefix + text
    assert ours.add_bos
    assert ours.encode("a b", add_bos=True) == theirs.encode("a b", special=True, add_bos=True)


@pytest.fixture(scope="module")
def both(bpe_vocab, scored_vocab, llama_cpp, tmp_path_factory) -> list[tuple[Tokenizer, Any]]:
    folder = tmp_path_factory.mktemp("gguf")
    paths = [bpe_vocab(pre).write(folder / f"{pre}.gguf") for pre in ("smollm", "llama-bpe", "qwen2", "qwen35")]
    paths.append(scored_vocab().write(folder / "scored.gguf"))
    return [(Tokenizer.from_gguf(path), llama_cpp(path)) for path in paths]


FRAGMENTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=4),
    st.sampled_from(["<|im_end|>", "<think>", "<s>", "'ll", "'S", "\r\n", "\n", "  ", "\t", "12", "é", "e\u0301", "▁"]),
    st.text("abAB 19'\n.", max_size=6),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(FRAGMENTS, max_size=12).map("".join))
def test_random_texts_give_the_ids_of_llama_cpp(both, text: str) -> None:
    for ours, theirs in both:
        assert_equal_ids(ours, theirs, [text])


@pytest.mark.real
def test_the_default_model_gives_the_ids_of_llama_cpp(default_gguf: Path, llama_cpp, awkward) -> None:
    ours = Tokenizer.from_gguf(default_gguf)
    # This vocabulary has no tokens for some bytes, such as F3.
    assert_equal_ids(ours, llama_cpp(default_gguf), [*awkward, "\U000c940e\U000b70ad", "\u0826\U00042be2"])
    assert (ours.vocab_size, ours.bos_id, ours.eos_id, ours.pad_id) == (49152, 1, 2, 2)
    assert ours.eos_ids == {0, 2}
    assert not ours.add_bos
    assert ours.special_ids == set(range(17))
    assert ours.chat_template is not None and "<|im_start|>" in ours.chat_template


def test_special_tokens_and_bytes(bpe_vocab: Callable[[str], Any]) -> None:
    ours = Tokenizer.from_gguf(bpe_vocab("smollm").fields())
    assert (ours.bos_id, ours.eos_id, ours.unk_id, ours.eot_id, ours.pad_id) == (1, 2, 3, None, None)
    assert ours.special_ids == {0, 1, 2, 3, 4}
    assert ours.eos_ids == {0, 2}
    assert (ours.bos_token, ours.eos_token) == ("<|im_start|>", "<|im_end|>")
    ids = ours.encode("<|im_start|>é")
    assert ids[0] == 1
    assert b"".join(map(ours.token_bytes, ids[1:])) == "é".encode()
    assert ours.decode(ids) == "<|im_start|>é"
    assert ours.decode(ids, skip_special=True) == "é"
    assert ours.encode("é", add_bos=True) == ids
    # Every byte has a token of its own, so nothing is out of reach.
    singles = {ours.token_bytes(index) for index in range(ours.vocab_size)}
    assert {bytes([byte]) for byte in range(256)} <= singles
    assert ours.decode([next(i for i in range(ours.vocab_size) if ours.token_bytes(i) == b"\xc3")]) == "\ufffd"


def test_user_defined_tokens_are_text_that_is_always_found(bpe_vocab: Callable[[str], Any]) -> None:
    ours = Tokenizer.from_gguf(bpe_vocab("qwen2").fields())
    think = ours.encode("<think>", special=False)
    assert len(think) == 1
    assert think[0] not in ours.special_ids
    assert ours.decode(think, skip_special=True) == "<think>"


def test_spans_say_where_special_tokens_count(bpe_vocab: Callable[[str], Any]) -> None:
    ours = Tokenizer.from_gguf(bpe_vocab("smollm").fields())
    text = "<|im_end|>a<|im_end|>b<|im_end|>"
    ids = ours.encode_spans(text, [(0, 10), (12, 22)])  # the second span cuts the second marker
    assert ids.count(2) == 1 and ids[0] == 2
    assert ours.decode(ids) == text
    assert ours.encode_spans(text, [(0, len(text))]) == ours.encode(text)
    assert ours.encode_spans(text, []) == ours.encode(text, special=False)


def test_lone_surrogates_read_as_replacement_characters(bpe_vocab: Callable[[str], Any]) -> None:
    ours = Tokenizer.from_gguf(bpe_vocab("smollm").fields())
    assert ours.encode("a\ud800b") == ours.encode("a\ufffdb")


def test_plain_text_never_merges_into_a_special_token(scored_vocab: Callable[..., Any]) -> None:
    ours = Tokenizer.from_gguf(scored_vocab().fields())
    for text in ("</s>", "x</s>y<s>", "<|im_end|>"):
        assert not ours.special_ids & set(ours.encode(text, special=False))


def test_fingerprints_tell_vocabularies_apart(bpe_vocab: Callable[[str], Any]) -> None:
    fields = bpe_vocab("smollm").fields()
    base = Tokenizer.from_gguf(fields).fingerprint
    assert base == Tokenizer.from_gguf(fields).fingerprint
    assert len(base) == 64
    types = list(fields["tokenizer.ggml.token_type"])
    types[-1] = 3
    assert Tokenizer.from_gguf({**fields, "tokenizer.ggml.token_type": types}).fingerprint != base


def test_unusable_metadata_is_named(bpe_vocab: Callable[[str], Any], scored_vocab: Any, tmp_path: Path) -> None:
    fields = bpe_vocab("smollm").fields()
    with pytest.raises(UnsupportedModelError, match=r"'odd'.*known ones: .*command-r.*qwen2.*smollm"):
        Tokenizer.from_gguf({**fields, "tokenizer.ggml.pre": "odd"})
    with pytest.raises(UnsupportedModelError, match="'t5'"):
        Tokenizer.from_gguf({**fields, "tokenizer.ggml.model": "t5"})
    with pytest.raises(CorruptFileError, match=r"tokenizer\.ggml\.tokens"):
        Tokenizer.from_gguf({})
    with pytest.raises(CorruptFileError, match="token types"):
        Tokenizer.from_gguf({**fields, "tokenizer.ggml.token_type": [1]})
    with pytest.raises(CorruptFileError, match="merges"):
        Tokenizer.from_gguf({**fields, "tokenizer.ggml.merges": ["no such"]})
    with pytest.raises(CorruptFileError, match="scores"):
        Tokenizer.from_gguf({**scored_vocab().fields(), "tokenizer.ggml.scores": []})
    with pytest.raises(NotFoundError, match="nowhere"):
        Tokenizer.from_gguf(tmp_path / "nowhere.gguf")
    for content in (b"", b"GGUF", b"not a gguf file at all, but long enough"):
        (tmp_path / "broken.gguf").write_bytes(content)
        with pytest.raises(CorruptFileError, match=r"broken\.gguf"):
            Tokenizer.from_gguf(tmp_path / "broken.gguf")
    whole = bpe_vocab("smollm").write(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:1000])
    with pytest.raises(CorruptFileError, match=r"cut\.gguf"):
        Tokenizer.from_gguf(tmp_path / "cut.gguf")


@pytest.mark.parametrize("index", [-1, 10**6])
def test_ids_outside_the_vocabulary_are_refused(bpe_vocab: Callable[[str], Any], index: int) -> None:
    ours = Tokenizer.from_gguf(bpe_vocab("smollm").fields())
    with pytest.raises(UsageError, match="outside the vocabulary"):
        ours.decode([index])
