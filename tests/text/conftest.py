"""Vocabularies, the files that hold them, and llama.cpp and transformers to compare with."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", "<s>"]
USER_DEFINED = ["<think>", "</think>"]

# Lines in many scripts. Trained without splitting, so that merges cross every border that a pre-tokenizer may draw.
CORPUS = """\
I'm sure we'll see that they've said it's what I'd do, and you're DON'T CAN'T WE'LL I'Ve
the 1234 and 12 345,678.90 years in 2026-11-30 at 10:59 ٣٤٥ ½ ² Ⅷ 第１２章
def f(x):\n        return x**2 + y[0]  # a  comment\n\n\n\tif (a != b) { c(); }\r\n\r\n
नमस्ते दुनिया यह हिन्दी है ทดสอบภาษาไทย สวัสดี مرحبا بالعالم שלום עולם
你好，世界。今日は良い天気ですね 안녕하세요 세계 Привет, мир! Γειά σου Κόσμε
café e\u0301e\u0301 naïve Ångström ﬁne 👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈 ❤️ éàü
https://example.org/a?b=c&d=e#f snake_case camelCase HTMLParser <b>bold</b> a/b/c\\d
""".splitlines()

AWKWARD = [
    "",
    " ",
    "Hello world",
    " leading and trailing  ",
    "I'm I'LL I'Ve we'Re it'S CAN'T 'tis 'ſ ’s x's1",
    "tabs\t\tand\nnew\n\nlines\r\nCRLF\r\n\r\n\rend\n",
    " " * 70 + "x" + " " * 3 + "\n" * 40 + "y",
    "\t \n \t\n  \n a  \n",
    "0 12 345 6789 1234567890 3.14 1,000 ٣٤٥٦ ½ ² Ⅷ 第１２３章 x2y22",
    "def f(x):\n    return {x: [1, 2], **kw}  # ok\n\tif (a!=b) { c(); } /* // */",
    "नमस्ते दुनिया क्षत्रिय ि",
    "ทดสอบภาษาไทยที่นี่",
    "مرحبا بالعالم ـــ لَا",
    "你好，世界。今日は！안녕하세요　全角",
    "e\u0301 a\u0300\u0301\u0302 \u0301start café",
    "👩‍👩‍👧‍👦🏳️‍🌈👍🏽 ❤️❤ 🇩🇪🇫🇷 #️⃣",
    "\x01\x02 \x1b[0m \x7f \x1c\x1d\x1e\x1f \x0b\x0c",
    "nul\x00inside \x00",
    "a\x85b\u00a0c\u2003d\u200be\u180ef\u3000g\u2028h\ufeffi",
    "word" * 700,
    "!?!?... --- ''' \"\"\" ``` $$$ ^^^ ~~~ ||| +++ ===",
    "<|im_end|>inside<|im_start|> text <|endoftext|><s></s> <unk> <|im_end",
    "<think>a</think> <thin k> <<think>>",
    "Ǆ ǅ ǆ İ ı ẞ ß K \U0001d54f \U00020000 \ue000 \U0010ffff",
    "snake_case camelCase HTMLParser ABCdef ÀÉî /path/to/x\\y",
]


@dataclass
class Vocab:
    """The tokenizer part of a GGUF file."""

    model: str
    tokens: list[str]
    types: list[int]
    merges: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    pre: str = "default"
    extra: dict[str, Any] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """As `Tokenizer.from_gguf` takes them."""
        values: dict[str, Any] = {
            "tokenizer.ggml.model": self.model,
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.token_type": self.types,
            **{f"tokenizer.ggml.{name}": value for name, value in self.extra.items()},
        }
        if self.model == "gpt2":
            return {**values, "tokenizer.ggml.pre": self.pre, "tokenizer.ggml.merges": self.merges}
        return {**values, "tokenizer.ggml.scores": self.scores}

    def write(self, path: Path) -> Path:
        """A whole GGUF model, so that llama.cpp loads it: one layer of width 32."""
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_block_count(1)
        writer.add_feed_forward_length(32)
        writer.add_head_count(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_dimension_count(32)
        writer.add_tokenizer_model(self.model)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.model == "gpt2":
            writer.add_tokenizer_pre(self.pre)
            writer.add_token_merges(self.merges)
        else:
            writer.add_token_scores(self.scores)
        for name, value in self.extra.items():
            add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
            add(f"tokenizer.ggml.{name}", value)
        shapes = {"token_embd": (len(self.tokens), 32), "output_norm": (32,)}
        shapes |= {f"blk.0.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.0.attn_{name}": (32, 32) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.0.ffn_{name}": (32, 32) for name in ("gate", "up", "down")}
        for name, shape in shapes.items():
            writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


@pytest.fixture(scope="session")
def byte_bpe() -> dict[str, Any]:
    """The JSON form (tokenizer.json) of a byte-level BPE tokenizer with SPECIALS and USER_DEFINED tokens."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=1100,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([*CORPUS, *(line.lower() for line in CORPUS), *CORPUS[:3], "  ", " " * 9], trainer)
    spec: dict[str, Any] = json.loads(backend.to_str())
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    first = len(spec["model"]["vocab"])
    spec["added_tokens"] += [{"id": first + n, "content": text, **plain} for n, text in enumerate(USER_DEFINED)]
    spec["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return spec


@pytest.fixture(scope="session")
def bpe_vocab(byte_bpe: Mapping[str, Any]) -> Callable[[str], Vocab]:
    """The same vocabulary as a GGUF file holds it, with any pre-tokenizer name."""
    by_id = {index: text for text, index in byte_bpe["model"]["vocab"].items()}
    tokens = [by_id[index] for index in range(len(by_id))] + USER_DEFINED
    types = [3 if text in SPECIALS else 4 if text in USER_DEFINED else 1 for text in tokens]
    merges = [" ".join(merge) for merge in byte_bpe["model"]["merges"]]
    extra = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 3}
    return lambda pre: Vocab("gpt2", tokens, types, merges=merges, pre=pre, extra=extra)


@pytest.fixture(scope="session")
def scored_vocab() -> Callable[..., Vocab]:
    """A SentencePiece vocabulary: bytes, characters, and longer pieces with scores (some of them equal)."""
    text = "\u2581".join(" ".join(CORPUS).split())
    pieces: dict[str, float] = {}
    for length in (1, 2, 3, 4, 6, 8):
        for start in range(0, len(text) - length, 1 if length < 4 else 3):
            pieces.setdefault(text[start : start + length], -float(len(pieces) // 2) if length > 1 else -5000.0)
    for length in (2, 3, 4, 8, 16):
        pieces.setdefault("\u2581" * length, -float(length))
        pieces.setdefault("a" * length, -7.0)
    listed = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    listed += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    listed += [(piece, score, 1) for piece, score in pieces.items() if piece not in "漢字第"]
    listed += [("<think>", 0.0, 4), ("<|im_end|>", 0.0, 3)]

    def make(**extra: Any) -> Vocab:
        tokens, scores, types = zip(*listed, strict=True)
        return Vocab("llama", list(tokens), list(types), scores=list(scores), extra=extra)

    return make


class LlamaCpp:
    """llama.cpp's tokenizer for one GGUF file, asked through its own server."""

    def __init__(self, path: Path) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.port, params.verbosity = 64, 1, 0, -1
        params.warmup = params.fit_params = False
        params.cpuparams.n_threads = 1
        self._server = xllamacpp.Server(params)

    def encode(self, text: str, *, special: bool, add_bos: bool = False) -> Sequence[int]:
        body = {"content": text, "parse_special": special, "add_special": add_bos}
        request = urllib.request.Request(
            f"{self._server.listening_address}/tokenize",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            ids: list[int] = json.load(answer)["tokens"]
        return ids


@pytest.fixture(scope="session")
def llama_cpp() -> Callable[[Path], LlamaCpp]:
    """Loads a GGUF file in llama.cpp."""
    return LlamaCpp


@pytest.fixture(scope="session")
def awkward() -> list[str]:
    """Texts that tokenizers disagree on."""
    return AWKWARD
