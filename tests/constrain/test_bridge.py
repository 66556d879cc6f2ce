"""Tokenizers of every kind behind a compiler: literals come out as the tokenizer would write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers

from tiny_engine import write_folder
from trifolium.constrain import Compiler, json_schema, regex
from trifolium.text import Tokenizer

CONST = {"a b": ["  two", "é☘", "<s>"]}


def sentencepiece(folder: Path) -> Tokenizer:
    """BPE with "▁" for blanks, bytes for what has no piece, and a blank put before every text, as Llama 2 has."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    words += ["▁", "a", "b", "t", "w", "o", '"', "{", "}", "▁a", "tw", "two", "▁two"]
    vocab = {word: i for i, word in enumerate(words)}
    merges = [("▁", "a"), ("t", "w"), ("tw", "o"), ("▁", "two")]
    backend = Backend(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "</s>", "bos_token": "<s>"}')
    return Tokenizer.from_hf(folder)


@pytest.fixture(params=["bytes", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    return write_folder(tmp_path / "tiny").tokenizer() if request.param == "bytes" else sentencepiece(tmp_path)


def test_literals_are_written_exactly(tokenizer):
    compiler = Compiler(tokenizer, tokenizer.eos_ids, tokenizer.vocab_size + 7)
    guide = compiler.guide(json_schema({"const": CONST}))
    run = guide.run(limit=200)
    assert tokenizer.decode(run) == '{"a b":["  two","é☘","<s>"]}'
    assert guide.after(run).ended
    assert not set(run) & tokenizer.special_ids
    assert tokenizer.decode(tokenizer.encode_within(" two<s>")) == " two<s>"


def test_blanks_inside_are_usual_tokens(tokenizer):
    compiler = Compiler(tokenizer, tokenizer.eos_ids, tokenizer.vocab_size)
    run = compiler.guide(regex("a two")).run()
    assert run == tokenizer.encode_within("a two")


def test_the_default_vocabulary() -> None:
    import trifolium

    lm = trifolium.load("nano", dtype="float32")
    compiler = lm.engine.compiler
    assert compiler is lm.engine.compiler
    guide = compiler.guide(json_schema({"const": CONST}))
    assert lm.tokenizer.decode(guide.run(limit=200)) == '{"a b":["  two","é☘","<s>"]}'
    anything = compiler.guide(regex("(?s:.)*")).after()
    assert max(anything.ids) < lm.tokenizer.vocab_size
    assert set(anything.ids.tolist()) & lm.tokenizer.special_ids == lm.tokenizer.eos_ids
