"""A tokenizer that can write any JSON, with long pieces that cross literals, and tiny random models over it."""

from __future__ import annotations

import torch

from tiny_engine import build_adapter, engine_config, randomise
from trifolium.model import Transformer
from trifolium.text import Tokenizer
from trifolium.text.vocabulary import Vocabulary

WORDS = [
    *('{"', '":', '":"', '","', '"}', '"]', '["', "],", "},", '":{"', "[]", "{}", ',"', '"},{"', "}]", '":['),
    *("true", "false", "null", "tr", "fal", "name", "value", "key", "red", "blue", "green", "th", "the", " the"),
    *("12", "34", "00", "1.", ".5", "  ", "\n\n", "\\n", "\\u", "é", "ü", "☘", "日本", "ab", "abc", "bc", "ca"),
]
SPECIAL = ["<|end|>", "<|turn|>", "<|mask|>"]
PIECES: list[bytes] = [bytes([i]) for i in range(256)] + [w.encode() for w in WORDS] + [b""] * 2
END = len(PIECES)
TURN, MASKED = END + 1, END + 2
FREE = END - 2
"""An id without text."""
PADDED = END + 3 + 11
"""The model's vocabulary, with padding beyond the tokenizer's."""


def encode(text: str, first: bool) -> list[int]:
    """Longest piece first, from left to right."""
    data, ids = text.encode(), []
    known = {piece: i for i, piece in enumerate(PIECES) if piece}
    while data:
        size = next(n for n in range(min(12, len(data)), 0, -1) if data[:n] in known)
        ids.append(known[data[:size]])
        data = data[size:]
    return ids


def json_tokenizer() -> Tokenizer:
    return Tokenizer(
        Vocabulary(
            pieces=[*PIECES, *(s.encode() for s in SPECIAL)],
            encode_plain=encode,
            added=(),
            special_ids=frozenset({END, TURN, MASKED}),
            eos_ids=frozenset({END, TURN}),
            eos_id=END,
        )
    )


def json_model(dtype: torch.dtype = torch.float32, *, adapter: bool = True, seed: int = 0) -> Transformer:
    """A random model over the tokenizer's vocabulary and some padding: it wants to write garbage."""
    config = engine_config(vocab_size=PADDED, max_positions=500)
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    if adapter:
        model.adapter = build_adapter(config, 6, generator, 0.1)
    model.requires_grad_(False)
    model.pack(dtype)
    return model
