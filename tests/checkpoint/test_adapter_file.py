"""Adapter files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoints import random_tensors, tiny_config

from trifolium.checkpoint import (
    check_base,
    load_adapter,
    open_checkpoint,
    read_adapter_config,
    save_adapter,
    write_hf,
)
from trifolium.checkpoint.adapter_file import METADATA_KEY
from trifolium.config import AdapterConfig
from trifolium.errors import AdapterMismatchError, CorruptFileError, NotFoundError, UnsupportedModelError

CONFIG = AdapterConfig.parse(
    {"base_name": "tiny", "base_fingerprint": "0" * 64, "vocab_size": 97, "hidden_size": 48, "num_layers": 3}, "test"
)


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {"mask": torch.randn(48, generator=generator), "layers.0.a": torch.randn(4, 6, generator=generator).T}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_adapter(tmp_path / "adapter.safetensors", CONFIG, tensors())
    return tmp_path / "adapter.safetensors"


def test_round_trip(path: Path) -> None:
    config, found = load_adapter(path)
    assert config == read_adapter_config(path) == CONFIG
    assert {name: tensor.dtype for name, tensor in found.items()} == dict.fromkeys(tensors(), torch.bfloat16)
    assert all(torch.equal(found[name], tensor.bfloat16()) for name, tensor in tensors().items())


def test_tensors_that_share_memory_are_saved(tmp_path: Path) -> None:
    one = torch.randn(4, dtype=torch.bfloat16)
    save_adapter(tmp_path / "shared.safetensors", CONFIG, {"a": one, "b": one})
    _, found = load_adapter(tmp_path / "shared.safetensors")
    assert torch.equal(found["a"], one)
    assert torch.equal(found["b"], one)


def test_a_failed_save_keeps_the_old_file(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(AttributeError):
        save_adapter(path, CONFIG, {"a": "not a tensor"})  # type: ignore[dict-item]
    (path.parent / "folder").mkdir()
    with pytest.raises(OSError, match=r"folder"):
        save_adapter(path.parent / "folder", CONFIG, tensors())
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["adapter.safetensors", "folder"]


def test_a_new_save_replaces_the_old_file_without_touching_what_was_loaded(path: Path) -> None:
    _, found = load_adapter(path)
    save_adapter(path, CONFIG, {"mask": torch.zeros(48)})
    assert torch.equal(found["mask"], tensors()["mask"].bfloat16())
    assert list(load_adapter(path)[1]) == ["mask"]


def test_truncated_anywhere(path: Path) -> None:
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 5), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFileError, match=r"adapter\.safetensors"):
            load_adapter(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such adapter"):
        load_adapter(tmp_path / "none.safetensors")
    with pytest.raises(NotFoundError, match="no such adapter"):
        read_adapter_config(tmp_path)


def test_a_pickle_is_no_adapter(path: Path) -> None:
    path.write_bytes(pickle.dumps({"mask": [1.0]}))
    with pytest.raises(CorruptFileError, match="no safetensors"):
        load_adapter(path)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        (None, CorruptFileError, "not an adapter"),
        ({"other": "x"}, CorruptFileError, "not an adapter"),
        ({METADATA_KEY: "{"}, CorruptFileError, "no JSON object"),
        ({METADATA_KEY: "[" * 50_000}, CorruptFileError, "no JSON object"),
        ({METADATA_KEY: "[1]"}, CorruptFileError, "no JSON object"),
        ({METADATA_KEY: json.dumps({"format": 2})}, UnsupportedModelError, "format 2"),
        ({METADATA_KEY: json.dumps({})}, UnsupportedModelError, "format None"),
        ({METADATA_KEY: json.dumps({"format": 1, "rank": 4})}, CorruptFileError, "base_name"),
        (
            {METADATA_KEY: json.dumps({**CONFIG.model_dump(), "ranc": 4})},
            CorruptFileError,
            "ranc.*known keys",
        ),
    ],
)
def test_files_that_are_no_adapter_of_ours(
    metadata: dict[str, str] | None, error: type[Exception], message: str, path: Path
) -> None:
    save_file(tensors() | {"layers.0.a": torch.zeros(1)}, path, metadata=metadata)
    for read in (load_adapter, read_adapter_config):
        with pytest.raises(error, match=message):
            read(path)


def test_only_the_base_that_it_was_made_for(tmp_path: Path) -> None:
    config = tiny_config()
    base = open_checkpoint(write_hf(tmp_path / "base", config, random_tensors(config).items()))
    other = open_checkpoint(write_hf(tmp_path / "other", config, random_tensors(config, seed=1).items()))
    smaller = tiny_config(num_layers=2)
    small = open_checkpoint(write_hf(tmp_path / "small", smaller, random_tensors(smaller).items()))
    adapter = CONFIG.model_copy(update={"base_name": "base", "base_fingerprint": base.fingerprint()})
    check_base(adapter, base)
    with pytest.raises(AdapterMismatchError, match=r"made for base, not for other.*other weights"):
        check_base(adapter, other)
    with pytest.raises(AdapterMismatchError, match="num_layers 3 against 2"):
        check_base(adapter, small)
