"""Fixtures of the constraints' tests."""

from __future__ import annotations

import pytest

from structured_engine import PADDED, json_tokenizer
from trifolium.constrain import Compiler
from trifolium.text import Tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return json_tokenizer()


@pytest.fixture(scope="session")
def compiler(tokenizer: Tokenizer) -> Compiler:
    return Compiler(tokenizer, tokenizer.eos_ids, PADDED)
