"""A server for all tests of this room, and a second model of the same weights to compare it with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import trifolium
from running_server import RunningServer, running
from tiny_engine import write_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with a context of 9,000 positions and a token for every byte."""
    return write_folder(tmp_path_factory.mktemp("serve") / "tiny", max_positions=9000).path


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[RunningServer]:
    with running(folder) as server:
        yield server


@pytest.fixture(scope="session")
def lm(folder: Path) -> trifolium.LM:
    """What the server has loaded, once more."""
    return trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype="int8")


@pytest.fixture
def http(server: RunningServer) -> httpx.Client:
    return server.client
