"""The safetensors reader, on folders that transformers wrote."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import all_options, fused, hf_model, tiny_config

from trifolium.checkpoint import Checkpoint, open_checkpoint
from trifolium.config import ModelConfig
from trifolium.errors import CorruptFileError, NotFoundError, TensorMismatchError, UnsupportedModelError

OPTIONS = pytest.mark.parametrize("config", all_options(), ids=lambda c: f"{c.family}-{c.tie_embeddings}-{c.out_bias}")


class Bomb:
    """Unpickling this would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    hf_model(tiny_config()).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    hf_model(tiny_config()).save_pretrained(tmp_path / "model", max_shard_size="40KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 2
    return tmp_path / "model"


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or (None) drop tensors; '__' in a name stands for a dot."""
    path = folder / "model.safetensors"
    state = load_file(path)
    for name, tensor in tensors.items():
        name = name.replace("__", ".")
        state.pop(name, None)
        if tensor is not None:
            state[name] = tensor
    save_file(state, path)


def same(checkpoint: Checkpoint, expected: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> bool:
    found = dict(checkpoint.tensors(dtype))
    assert set(found) == set(expected)
    assert all(tensor.dtype == dtype for tensor in found.values())
    return all(torch.equal(found[name], tensor.to(dtype)) for name, tensor in expected.items())


@OPTIONS
@pytest.mark.parametrize("shards", ["1GB", "40KB"])
def test_what_transformers_saved_is_read(config: ModelConfig, shards: str, tmp_path: Path) -> None:
    model = hf_model(config)
    model.save_pretrained(tmp_path, max_shard_size=shards)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == config
    assert checkpoint.format == "safetensors"
    assert same(checkpoint, fused(model, config))


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_are_converted(stored: torch.dtype, tmp_path: Path) -> None:
    model = hf_model(tiny_config()).to(stored)
    model.save_pretrained(tmp_path)
    expected = fused(model, tiny_config())
    assert same(open_checkpoint(tmp_path), expected)
    assert same(open_checkpoint(tmp_path), expected, torch.bfloat16)


def test_tensors_are_read_one_at_a_time(sharded: Path) -> None:
    stream = open_checkpoint(sharded).tensors(torch.float32)
    next(stream)
    for shard in sharded.glob("*.safetensors"):
        shard.unlink()
    with pytest.raises(CorruptFileError):
        list(stream)


def test_a_tensor_outlives_its_file(folder: Path) -> None:
    expected = fused(hf_model(tiny_config()), tiny_config())
    found = dict(open_checkpoint(folder).tensors(torch.float32))
    path = folder / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_all_faults_of_the_tensors_are_listed(folder: Path) -> None:
    change(
        folder,
        model__norm__weight=None,
        model__layers__1__mlp__up_proj__weight=torch.zeros(80, 47),
        model__layers__3__mlp__up_proj__weight=torch.zeros(80, 48),
    )
    with pytest.raises(TensorMismatchError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert "missing: model.norm.weight [48]" in message
    assert "mis-shaped: model.layers.1.mlp.up_proj.weight is [80, 47], expected [80, 48]" in message
    assert "unexpected: model.layers.3.mlp.up_proj.weight [80, 48]" in message


def test_old_rotary_buffers_are_ignored(folder: Path) -> None:
    change(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(5))
    assert same(open_checkpoint(folder), fused(hf_model(tiny_config()), tiny_config()))


def test_a_head_beside_tied_embeddings_must_equal_them(tmp_path: Path) -> None:
    config = tiny_config(tie_embeddings=True)
    model = hf_model(config)
    model.save_pretrained(tmp_path)
    embed = model.state_dict()["model.embed_tokens.weight"].clone()
    change(tmp_path, lm_head__weight=embed)
    assert same(open_checkpoint(tmp_path), fused(model, config))
    change(tmp_path, lm_head__weight=embed + 1)
    with pytest.raises(TensorMismatchError, match="tie_word_embeddings"):
        list(open_checkpoint(tmp_path).tensors(torch.float32))


def test_quantised_safetensors_are_refused(folder: Path) -> None:
    change(folder, model__layers__0__mlp__up_proj__weight=torch.zeros(80, 48, dtype=torch.int8))
    with pytest.raises(UnsupportedModelError, match=r"up_proj.weight is I8"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickles_are_refused_and_not_run(name: str, folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path / "boom")))
    for source in (folder, folder / name):
        with pytest.raises(CorruptFileError, match=f"(?s)pickled weights.*{name}"):
            open_checkpoint(source)
    # Under a name that promises better, it is simply not the format.
    (folder / name).rename(folder / "model.safetensors")
    with pytest.raises(CorruptFileError, match=r"model\.safetensors"):
        open_checkpoint(folder)
    assert not (tmp_path / "boom").exists()


def test_truncated_anywhere(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for size in [*range(0, 64, 3), header // 2, header - 1, header, header + 1, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFileError, match=r"model\.safetensors"):
            open_checkpoint(folder)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 90_000_000) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"\xff\xfe\xff\xfe",
        struct.pack("<Q", 80)
        + b'{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16]}}'.ljust(80),
        struct.pack("<Q", 80) + b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}}'.ljust(80),
    ],
)
def test_hostile_headers(head: bytes, folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(head + bytes(16))
    with pytest.raises(CorruptFileError, match=r"model\.safetensors"):
        open_checkpoint(folder)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CorruptFileError, match=shard.name):
        open_checkpoint(sharded)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "sub/x.safetensors", "weights.bin"])
def test_an_index_cannot_leave_its_folder(name: str, sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(CorruptFileError, match="no safetensors file of its folder"):
        open_checkpoint(sharded)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": {"a": 1}}])
def test_a_broken_index(index: dict[str, Any], sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptFileError, match="weight_map"):
        open_checkpoint(sharded)


def test_a_tensor_in_two_shards(sharded: Path) -> None:
    first, second, *_ = sorted(sharded.glob("*.safetensors"))
    save_file({**load_file(second), **load_file(first)}, second)
    with pytest.raises(CorruptFileError, match="is in both"):
        open_checkpoint(sharded)


def test_incomplete_folders(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(NotFoundError, match=r"config\.json"):
        open_checkpoint(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match=r"holds no model\.safetensors"):
        open_checkpoint(tmp_path / "empty")
    with pytest.raises(NotFoundError, match="give the folder"):
        open_checkpoint(folder / "model.safetensors")


def test_the_licence_comes_from_the_model_card(folder: Path) -> None:
    assert open_checkpoint(folder).licence is None
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Model\nlicense: other\n")
    assert open_checkpoint(folder).licence == "apache-2.0"
