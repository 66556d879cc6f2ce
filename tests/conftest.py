"""Fixtures for all rooms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def default_gguf() -> Path:
    """The default model's GGUF file: $TRIFOLIUM_TEST_GGUF, or pulled once into the user's cache. Mark tests `real`."""
    if given := os.environ.get("TRIFOLIUM_TEST_GGUF"):
        return Path(given)
    from trifolium.checkpoint.shelf import DEFAULT_MODEL, pull

    return pull(DEFAULT_MODEL, progress=False)
