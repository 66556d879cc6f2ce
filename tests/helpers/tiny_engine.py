"""Tiny random models whose dimensions all differ, with adapters, drafters and tokenizers to decode with."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from trifolium.checkpoint import Checkpoint, open_checkpoint, save_adapter, write_hf
from trifolium.config import AdapterConfig, ModelConfig
from trifolium.engine.drafts import Draft
from trifolium.model import Adapter, Transformer
from trifolium.text import Tokenizer
from trifolium.text.vocabulary import Vocabulary

VOCAB = 101
POSITIONS = 150

Build = Callable[..., Transformer]


def engine_config(tied: bool = False, **changes: int) -> ModelConfig:
    """V 101, D 40, F 56, H 6, K 2, d 8."""
    values: dict[str, object] = {
        "family": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 40,
        "intermediate_size": 56,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 8,
        "tie_embeddings": tied,
        "max_positions": POSITIONS,
    }
    return ModelConfig.parse({**values, **changes}, "test")


def hybrid_config() -> ModelConfig:
    """V 101, D 40; three delta-net layers (2 key, 4 value heads of 6 and 10) to one of gated attention; 5 experts."""
    changes: dict[str, object] = {
        "family": "qwen3_5_moe_text",
        "num_layers": 4,
        "qk_norm": True,
        "output_gate": True,
        "norm_offset": 1,
        "rope": {"rotary_dim": 4},
        "delta_net": {"key_heads": 2, "value_heads": 4, "key_dim": 6, "value_dim": 10, "conv_width": 4},
        "experts": {"count": 5, "top_k": 2, "size": 14, "shared_size": 18},
        "mixers": ("delta_net", "delta_net", "delta_net", "attention"),
        "feed_forwards": ("experts", "dense", "experts", "experts"),
    }
    return ModelConfig.parse({**engine_config().model_dump(), **changes}, "test")


def randomise(model: Transformer, generator: torch.Generator) -> None:
    """Sharp logits and strong layers: greedy answers vary, and near ties are as rare as in real models."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:
                scale = 1.0 if name == "embed.weight" else 2.0 * p.shape[-1] ** -0.5
                p.copy_(torch.randn(p.shape, generator=generator) * scale)
            elif "decay" in name:
                p.copy_(torch.randn(p.shape, generator=generator))


def build_model(
    dtype: torch.dtype | None = torch.float32,
    *,
    adapter: bool = True,
    tied: bool = False,
    hybrid: bool = False,
    chain: int = 6,
    scale: float = 0.1,
    seed: int = 0,
) -> Transformer:
    """A random model, packed unless `dtype` is None; equal arguments give equal weights.

    `scale`: size of the adapter's random weights.
    """
    config = hybrid_config() if hybrid else engine_config(tied)
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    if adapter:
        model.adapter = build_adapter(config, chain, generator, scale)
    model.requires_grad_(False)
    if dtype is not None:
        model.pack(dtype)
    return model


def adapter_config(config: ModelConfig, chain: int, fingerprint: str = "") -> AdapterConfig:
    return AdapterConfig(
        base_name="tiny",
        base_fingerprint=fingerprint,
        rank=3,
        alpha=3,
        max_block=9,
        block_size=5,
        chain_size=chain,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_layers,
    )


def build_adapter(config: ModelConfig, chain: int, generator: torch.Generator, scale: float) -> Adapter:
    adapter = Adapter(adapter_config(config, chain), config)
    with torch.no_grad():
        for p in adapter.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * scale)
    return adapter


class OracleDrafts:
    """Knows the true answer, and spoils it: drafts are right for a random number of tokens, then certainly wrong."""

    def __init__(self, answer: Sequence[int], seed: int, quality: float) -> None:
        self._left = list(answer)
        self._random = random.Random(seed)
        self._quality = quality

    def push(self, token: int) -> None:
        if self._left:
            self._left.pop(0)

    def propose(self, limit: int) -> Draft:
        tokens = []
        for token in self._left[:limit]:
            right = self._random.random() < self._quality
            tokens.append(token if right else (token + self._random.randrange(1, VOCAB)) % VOCAB)
        return Draft(tuple(tokens), (0.9,) * len(tokens), "oracle", "oracle")


class TreeOracleDrafts(OracleDrafts):
    """Trees in which the truth is one of up to three alternatives, in any place; wrong ones have children too."""

    def propose(self, limit: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        level = [-1]
        for truth in self._left[: min(limit, 5)]:
            grown = []
            for parent in level[:4]:
                choices = {truth} if self._random.random() < self._quality else set()
                while len(choices) < self._random.randint(1, 3):
                    choices.add(self._random.randrange(VOCAB))
                for token in self._random.sample(sorted(choices), len(choices)):
                    grown.append(len(tokens))
                    tokens.append(token)
                    parents.append(parent)
            level = self._random.sample(grown, len(grown))
        confidences = tuple(self._random.uniform(0.2, 0.9) / parents.count(p) for p in parents)
        return Draft(tuple(tokens), confidences, "oracle", "oracle", tuple(parents))


def piece_tokenizer() -> Tokenizer:
    """101 tokens whose bytes include parts of characters, shared prefixes of stop strings, and one end token (7)."""
    euro, clover = "€".encode(), "☘".encode()
    pieces = [b"a", b"b", b"ab", b"st", b"op", b"stop", euro[:1], b"", euro[1:], euro, clover[:2], clover[2:]]
    pieces += [b" ", b".", b"\n", b"Q:", b"to", b"p", b"s", b"t", b"o", "é".encode()]
    pieces += [b"w%d" % i for i in range(VOCAB - len(pieces))]
    return Tokenizer(
        Vocabulary(
            pieces=pieces,
            encode_plain=lambda text, first: [pieces.index(c.encode()) for c in text],
            added=(),
            special_ids=frozenset({7}),
            eos_ids=frozenset({7}),
            eos_id=7,
            bos_id=None,
            eot_id=None,
            pad_id=None,
            unk_id=None,
            add_bos=False,
            add_eos=False,
            chat_template=None,
        )
    )


def write_folder(
    folder: Path,
    *,
    with_adapter: bool = True,
    seed: int = 0,
    max_positions: int = 400,
    chat_template: str | None = None,
    more_specials: Sequence[str] = (),
) -> Checkpoint:
    """A model on disk as users have it: HF folder with a byte-level tokenizer, and `adapter.safetensors` inside."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    specials = ["<|im_start|>", "<|im_end|>", *more_specials]
    backend.add_special_tokens(specials)
    config = engine_config(vocab_size=len(alphabet) + len(specials), max_positions=max_positions)
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    randomise(model, generator)
    write_hf(folder, config, dict(model.named_parameters()).items())
    backend.save(str(folder / "tokenizer.json"))
    texts = {"eos_token": "<|im_end|>", **({"chat_template": chat_template} if chat_template else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(texts))
    checkpoint = open_checkpoint(folder)
    if with_adapter:
        adapter = build_adapter(config, 6, generator, 0.1)
        save_adapter(
            folder / "adapter.safetensors",
            adapter_config(config, 6, checkpoint.fingerprint()),
            dict(adapter.named_parameters()),
        )
    return checkpoint
