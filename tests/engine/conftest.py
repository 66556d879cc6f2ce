"""Fixtures of the engine's tests: cached tiny models, random prompts, and a one-line way to an answer."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from tiny_engine import VOCAB, Build, OracleDrafts, TreeOracleDrafts, build_model, piece_tokenizer
from trifolium.engine import Engine, Request
from trifolium.engine import scheduler as scheduling
from trifolium.model import Transformer
from trifolium.text import Tokenizer


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


@pytest.fixture(scope="session")
def oracle() -> type[OracleDrafts]:
    return OracleDrafts


@pytest.fixture(scope="session")
def tree_oracle() -> type[TreeOracleDrafts]:
    return TreeOracleDrafts


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return piece_tokenizer()


@pytest.fixture(scope="session")
def prompts() -> Callable[..., list[list[int]]]:
    """Random prompts, a third of them repetitive so that n-grams match."""

    def make(count: int, seed: int = 0) -> list[list[int]]:
        rng = random.Random(seed)
        out = []
        for i in range(count):
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 40))]
            out.append(prompt if i % 3 else (prompt[:5] * 6)[: rng.randint(1, 30)])
        return out

    return make


@pytest.fixture(scope="session")
def answer() -> Callable[..., tuple[int, ...]]:
    """Token ids that a fresh engine gives one request."""

    def run(model: Transformer, request: Request, **options: object) -> tuple[int, ...]:
        return Engine(model, **options).run([request])[0].token_ids  # type: ignore[arg-type]

    return run


@pytest.fixture(params=[False, True], ids=["grid", "mixed"])
def mixed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Prompts in passes of their own on a grid of 16, or wherever there is room, as the model allows.

    Tiny models allow both: their commit rows are exact in any company, and only wide products of prompts are not.
    """
    monkeypatch.setattr(Transformer, "row_exact", request.param)
    monkeypatch.setattr(scheduling, "CHUNK", 16)
    return request.param
