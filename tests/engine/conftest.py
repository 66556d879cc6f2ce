"""Tiny random models for the engine's tests: every dimension differs, the adapter is random, answers are diverse."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from trifolium.config import AdapterConfig, ModelConfig
from trifolium.engine import Engine, Request
from trifolium.engine.drafts import Draft
from trifolium.model import Adapter, Transformer
from trifolium.text import Tokenizer
from trifolium.text.vocabulary import Vocabulary

VOCAB = 101
POSITIONS = 150

Build = Callable[..., Transformer]


def build_model(
    dtype: torch.dtype = torch.float32,
    *,
    adapter: bool = True,
    tied: bool = False,
    chain: int = 6,
    scale: float = 0.1,
    seed: int = 0,
) -> Transformer:
    """A packed random model; equal arguments give equal weights. `scale`: size of the adapter's random weights."""
    config = ModelConfig(
        family="llama",
        vocab_size=VOCAB,
        hidden_size=40,
        intermediate_size=56,
        num_layers=2,
        num_heads=6,
        num_kv_heads=2,
        head_dim=8,
        tie_embeddings=tied,
        max_positions=POSITIONS,
    )
    model = Transformer(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                # Sharp logits and strong layers: greedy answers vary, and near ties are as rare as in real models.
                scale = 1.0 if name == "embed.weight" else 2.0 * p.shape[1] ** -0.5
                p.copy_(torch.randn(p.shape, generator=generator) * scale)
    if adapter:
        model.adapter = build_adapter(config, chain, generator, scale)
    model.requires_grad_(False)
    model.pack(dtype)
    return model


def build_adapter(config: ModelConfig, chain: int, generator: torch.Generator, scale: float) -> Adapter:
    sizes = {"vocab_size": VOCAB, "hidden_size": config.hidden_size, "num_layers": config.num_layers}
    adapter = Adapter(
        AdapterConfig(
            base_name="tiny", base_fingerprint="", rank=3, alpha=3, max_block=9, block_size=5, chain_size=chain, **sizes
        ),
        config,
    )
    with torch.no_grad():
        for p in adapter.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * scale)
    return adapter


@pytest.fixture(scope="session")
def models() -> Build:
    """`build_model`, each distinct model made once a session."""
    made: dict[object, Transformer] = {}

    def get(dtype: torch.dtype = torch.float32, **options: object) -> Transformer:
        key = (dtype, tuple(sorted(options.items())))
        if key not in made:
            made[key] = build_model(dtype, **options)  # type: ignore[arg-type]
        return made[key]

    return get


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


@pytest.fixture(scope="session")
def oracle() -> type[OracleDrafts]:
    return OracleDrafts


def random_prompt(rng: random.Random, longest: int = 40) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(rng.randint(1, longest))]


@pytest.fixture
def prompts() -> Iterator[Callable[[int], list[list[int]]]]:
    """Random prompts, some of them repetitive so that n-grams match."""

    def make(count: int, seed: int = 0) -> list[list[int]]:
        rng = random.Random(seed)
        out = []
        for i in range(count):
            prompt = random_prompt(rng)
            out.append(prompt if i % 3 else (prompt[:5] * 6)[: rng.randint(1, 30)])
        return out

    yield make


@pytest.fixture(scope="session")
def answer() -> Callable[..., tuple[int, ...]]:
    """Token ids that a fresh engine gives one request."""

    def run(model: Transformer, request: Request, **options: object) -> tuple[int, ...]:
        return Engine(model, **options).run([request])[0].token_ids  # type: ignore[arg-type]

    return run


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
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
