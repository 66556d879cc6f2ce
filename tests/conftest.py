"""Fixtures for every room's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The default model's GGUF file; tests that ask for it are marked `real`."""
    path = Path(os.environ.get("TRIFOLIUM_TEST_GGUF", "/tmp/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    if not path.is_file():
        pytest.skip(f"the default model is not at {path}; set TRIFOLIUM_TEST_GGUF")
    return path
