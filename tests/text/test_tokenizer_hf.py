"""Hugging Face folders: every id must be the one that `transformers` gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trifolium.errors import CorruptFileError, NotFoundError, UnsupportedModelError
from trifolium.text import Tokenizer

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLIT = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
BOS_FIRST = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}},
}


def write(folder: Path, spec: Mapping[str, Any], config: Mapping[str, Any] | None = None, **files: Any) -> Path:
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def assert_equal_ids(folder: Path, texts: list[str]) -> Tokenizer:
    ours = Tokenizer.from_hf(folder)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    for text in texts:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
        plain = theirs.encode(text, add_special_tokens=False, split_special_tokens=True)
        assert ours.encode(text, special=False) == plain, text
    return ours


@pytest.mark.parametrize("style", ["gpt2", "smollm", "qwen2", "llama3"])
def test_byte_level_gives_the_ids_of_transformers(style, byte_bpe, awkward, tmp_path) -> None:
    spec = json.loads(json.dumps(byte_bpe))
    if style == "gpt2":
        spec["pre_tokenizer"] = {**BYTES, "use_regex": True}
    elif style == "smollm":
        digits = {"type": "Digits", "individual_digits": True}
        spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, {**BYTES, "use_regex": True}]}
    else:
        spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}
        spec["normalizer"] = {"type": "NFC"} if style == "qwen2" else None
        spec["model"]["ignore_merges"] = style == "llama3"
        spec["post_processor"] = BOS_FIRST if style == "llama3" else None
    ours = assert_equal_ids(write(tmp_path, spec, {"bos_token": "<s>"}), awkward)
    assert ours.add_bos == (style == "llama3")
    assert not ours.add_eos
    if style != "qwen2":  # NFC rewrites text
        assert all(ours.decode(ours.encode(text)) == text for text in awkward)


@pytest.mark.parametrize("style", ["prepend", "first", "always", "never"])
def test_sentencepiece_gives_the_ids_of_transformers(style, awkward, tmp_path) -> None:
    backend = Backend(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    scheme = "never" if style == "prepend" else style
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    specials = ["<unk>", "<s>", "</s>", "<|im_end|>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=specials, show_progress=False)
    backend.train_from_iterator([text[:80] for text in awkward if "<" not in text], trainer)
    spec = json.loads(backend.to_str())
    spec["added_tokens"] = spec["added_tokens"][:4]
    if style == "prepend":
        steps = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        backend.normalizer = normalizers.Sequence(steps)
        spec["normalizer"], spec["pre_tokenizer"] = json.loads(backend.to_str())["normalizer"], None
    ours = assert_equal_ids(write(tmp_path, spec, {"bos_token": "<s>", "eos_token": "</s>"}), awkward)
    text = "नमस्ते \U0010ffff"
    prefix = "" if style == "never" else " "
    assert ours.decode(ours.encode(text)) == prefix + text
    assert ours.token_bytes(4 + 0xE4) == b"\xe4"


def test_added_tokens_swallow_spaces_and_want_whole_words(byte_bpe, tmp_path) -> None:
    spec = json.loads(json.dumps(byte_bpe))
    spec["pre_tokenizer"] = {**BYTES, "use_regex": True}
    base = {"normalized": False, "special": True, "lstrip": False, "rstrip": False, "single_word": False}
    first = len(spec["model"]["vocab"]) + 2
    for n, extra in enumerate(({"lstrip": True}, {"rstrip": True}, {"single_word": True}, {})):
        text = ["<left>", "<right>", "word", "<|im_start|>system"][n]
        spec["added_tokens"].append({"id": first + n, "content": text, **base, **extra})
    texts = ["a  <left>  b", "a  <right>  b", "<right>  <left> <left>", "  <right>\n\n", "a word, words sword word"]
    texts += ["<|im_start|>system <|im_start|>syste", "word", "<left>", " <left>word"]
    assert_equal_ids(write(tmp_path, spec), texts)


def test_special_tokens_come_from_all_files(byte_bpe: Mapping[str, Any], tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<s>"},
        "eos_token": "<|im_end|>",
        "add_bos_token": True,
        "chat_template": [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}],
    }
    special_map = {"pad_token": "<|endoftext|>", "unk_token": {"content": "<unk>"}, "eos_token": "<s>"}
    folder = write(
        tmp_path, byte_bpe, config, generation_config={"eos_token_id": [2, 0]}, special_tokens_map=special_map
    )
    ours = Tokenizer.from_hf(folder)
    assert (ours.bos_id, ours.eos_id, ours.pad_id, ours.unk_id) == (4, 2, 0, 3)
    assert ours.eos_ids == {0, 2}
    assert ours.add_bos
    assert ours.special_ids == {0, 1, 2, 3, 4}
    assert ours.vocab_size == len(byte_bpe["model"]["vocab"]) + 2
    assert ours.chat_template == "y"
    (folder / "chat_template.jinja").write_text("z")
    assert Tokenizer.from_hf(folder).chat_template == "z"


def test_the_same_vocabulary_from_either_file_is_the_same(
    byte_bpe: Mapping[str, Any], bpe_vocab: Callable[[str], Any], awkward: list[str], tmp_path: Path
) -> None:
    spec = json.loads(json.dumps(byte_bpe))
    spec["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<unk>"}
    hf = Tokenizer.from_hf(write(tmp_path, spec, config, generation_config={"eos_token_id": [0, 2]}))
    gguf = Tokenizer.from_gguf(bpe_vocab("qwen2").fields())
    assert hf.fingerprint == gguf.fingerprint
    assert (hf.bos_id, hf.eos_ids, hf.special_ids) == (gguf.bos_id, gguf.eos_ids, gguf.special_ids)
    for text in awkward:
        if "ſ" not in text:  # (?i:'s) takes in the long s; llama.cpp's pattern doesn't
            assert hf.encode(text) == gguf.encode(text)


def test_unusable_folders_are_named(byte_bpe: Mapping[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no tokenizer\.json"):
        Tokenizer.from_hf(tmp_path)
    broken: list[tuple[str, type[Exception], str]] = [
        ("{", CorruptFileError, "not readable as JSON"),
        ("[]", CorruptFileError, "JSON object"),
        ("[" * 100_000, CorruptFileError, "not readable as JSON"),
        ("{}", UnsupportedModelError, "known ones: BPE"),
        (json.dumps({**byte_bpe, "model": {"type": "Unigram", "vocab": []}}), UnsupportedModelError, "Unigram"),
        (json.dumps({**byte_bpe, "added_tokens": [{"id": 1}]}), CorruptFileError, "added_tokens"),
        (json.dumps({**byte_bpe, "pre_tokenizer": {"type": "Odd"}}), CorruptFileError, "not a usable tokenizer"),
        (json.dumps({**byte_bpe, "decoder": None, "pre_tokenizer": None}), UnsupportedModelError, "byte-level"),
    ]
    for content, error, message in broken:
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(error, match=message):
            Tokenizer.from_hf(tmp_path)
