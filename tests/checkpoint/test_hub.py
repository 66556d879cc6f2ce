"""Models from the hub, against a server on localhost."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub_server import REPO, HubServer, serving
from tiny_checkpoints import random_tensors, tiny_config

from trifolium.checkpoint import Shelf, hub, open_checkpoint, write_hf
from trifolium.errors import DownloadError

TINY = """
[models.tiny]
title = "Tiny"
description = "A model for tests"
licence = "MIT"
[[models.tiny.sources]]
kind = "hub"
repo = "owner/tiny"
bytes = 1000
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The tiny model in shards, and files beside it that must not be fetched."""
    config = tiny_config()
    folder = write_hf(tmp_path / "served", config, random_tensors(config).items(), shard_bytes=100_000)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "consolidated.safetensors").write_bytes(b"the same again")
    with serving(folder) as running:
        reach(monkeypatch, f"http://127.0.0.1:{running.server_port}", tmp_path)
        yield running


def reach(monkeypatch: pytest.MonkeyPatch, endpoint: str, tmp_path: Path) -> None:
    """Point huggingface_hub, which reads its environment once, at another hub and another cache."""
    from huggingface_hub import _snapshot_download, constants, file_download, hf_api

    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for module in (_snapshot_download, file_download, hf_api):
        assert module.constants is constants


def test_only_the_needed_files_are_fetched_and_only_once(server: HubServer) -> None:
    checkpoint = open_checkpoint(REPO, progress=False)
    assert (checkpoint.name, checkpoint.licence, checkpoint.format) == (REPO, "mit", "safetensors")
    found = dict(checkpoint.tensors(torch.float32))
    assert all(torch.equal(found[name], tensor) for name, tensor in random_tensors(tiny_config()).items())
    fetched = {name for method, name in server.asked if method == "GET"}
    assert fetched == {path.name for path in server.folder.iterdir()} - {
        "pytorch_model.bin",
        "consolidated.safetensors",
    }
    server.asked.clear()
    open_checkpoint(REPO, progress=False)
    assert not [name for method, name in server.asked if method == "GET"]


def test_the_cache_answers_when_the_hub_is_gone(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    path = open_checkpoint(REPO, progress=False).path
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert open_checkpoint(REPO, progress=False).path == path
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert open_checkpoint(REPO, progress=False).path == path


def test_an_unknown_repository(server: HubServer) -> None:
    with pytest.raises(DownloadError, match=r"the hub gave no owner/other: .*404"):
        open_checkpoint("owner/other", progress=False)


def test_a_shelf_model_goes_on_where_the_last_pull_failed(server: HubServer, tmp_path: Path) -> None:
    shelf = Shelf.load(TINY, tmp_path / "cache")
    shards = sorted(path.name for path in server.folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    server.refused = {shards[-1]}
    with pytest.raises(DownloadError, match="hub owner/tiny: the hub's owner/tiny is not complete yet"):
        shelf.pull("tiny", progress=False)
    assert shelf.installed_path("tiny") is None
    server.refused = set()
    server.asked.clear()
    path = shelf.pull("tiny", progress=False)
    assert [name for method, name in server.asked if method == "GET" and name in shards] == [shards[-1]]
    assert path == shelf.folder / "tiny"
    assert open_checkpoint(path).licence == "mit"
    installed = shelf.installed("tiny")
    assert installed is not None
    assert installed.source == "hub owner/tiny"
    assert {name for name in installed.files if name.endswith(".safetensors")} == set(shards)
    assert len(installed.sha256) == 64
    assert shelf.verify("tiny")
    assert not (path / ".cache").exists()


def test_a_hub_that_never_answers_is_given_up_within_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reach(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path)
        started = time.perf_counter()
        with pytest.raises(DownloadError, match="the hub gave no owner/tiny"):
            hub.fetch(REPO, folder=tmp_path / "x", progress=False)
        assert time.perf_counter() - started < 8


@pytest.mark.parametrize(
    ("text", "is_id"),
    [("owner/model-1.5_B", True), ("model", False), ("a/b/c", False), ("./x/y", False), ("../x", False), ("/x", False)],
)
def test_what_counts_as_a_hub_id(text: str, is_id: bool) -> None:
    assert hub.is_hub_id(text) is is_id
