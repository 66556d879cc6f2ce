"""Writing HF folders: read back by us and by transformers; whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors import safe_open
from tiny_checkpoints import all_options, fused, random_tensors, tiny_config, write_gguf

from trifolium.checkpoint import open_checkpoint, write_hf
from trifolium.config import ModelConfig
from trifolium.errors import TensorMismatchError, UnsupportedModelError, UsageError

OPTIONS = pytest.mark.parametrize("config", all_options(), ids=lambda c: f"{c.family}-{c.tie_embeddings}-{c.out_bias}")


@OPTIONS
@pytest.mark.parametrize("shard_bytes", [1 << 30, 40_000])
def test_round_trip(config: ModelConfig, shard_bytes: int, tmp_path: Path) -> None:
    tensors = random_tensors(config)
    folder = write_hf(tmp_path / "out", config, tensors.items(), shard_bytes=shard_bytes)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == config
    found = dict(checkpoint.tensors(torch.float32))
    assert list(found) == list(tensors)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@OPTIONS
@pytest.mark.parametrize("shard_bytes", [1 << 30, 40_000])
def test_transformers_reads_it(config: ModelConfig, shard_bytes: int, tmp_path: Path) -> None:
    tensors = random_tensors(config)
    write_hf(tmp_path / "out", config, tensors.items(), shard_bytes=shard_bytes)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    back = fused(model, config)
    assert set(back) == set(tensors)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_shards_keep_their_size_and_the_index_lists_them(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = random_tensors(config)
    folder = write_hf(tmp_path / "out", config, tensors.items(), shard_bytes=40_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    for file in files:
        with safe_open(file, framework="pt") as opened:
            names = list(opened.keys())
            assert {index["weight_map"][name] for name in names} == {file.name}
            assert len(names) == 1 or sum(opened.get_tensor(name).nbytes for name in names) <= 40_000


def test_bfloat16_stays_bfloat16(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(config).items()}
    folder = write_hf(tmp_path / "out", config, tensors.items())
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    found = dict(open_checkpoint(folder).tensors(torch.bfloat16))
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_gguf_file_becomes_a_folder_with_the_same_fingerprint(tmp_path: Path) -> None:
    config = tiny_config("qwen3")
    source = open_checkpoint(write_gguf(tmp_path / "x.gguf", config, random_tensors(config)))
    folder = write_hf(tmp_path / "out", source.config, source.tensors(torch.float32))
    assert open_checkpoint(folder).fingerprint() == source.fingerprint()


def test_nothing_is_left_behind_when_it_fails(tmp_path: Path) -> None:
    config = tiny_config()
    tensors = random_tensors(config)

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        yield from list(tensors.items())[:12]
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_hf(tmp_path / "out", config, broken(), shard_bytes=10_000)
    wrong = {**tensors, "norm.weight": torch.zeros(3), "extra": torch.zeros(2)}
    del wrong["layers.0.ffn_norm.weight"]
    with pytest.raises(TensorMismatchError) as caught:
        write_hf(tmp_path / "out", config, wrong.items())
    for part in ("missing: layers.0.ffn_norm.weight", "unexpected: extra", "mis-shaped: norm.weight is [3]"):
        assert part in str(caught.value)
    mixed = {**tensors, "norm.weight": tensors["norm.weight"].bfloat16()}
    with pytest.raises(TensorMismatchError, match="mix dtypes"):
        write_hf(tmp_path / "out", config, mixed.items())
    partial = tiny_config(rope={"rotary_dim": 4})
    with pytest.raises(UnsupportedModelError, match="rotary_dim"):
        write_hf(tmp_path / "out", partial, tensors.items())
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        write_hf(tmp_path / "out", tiny_config(), random_tensors(tiny_config()).items())
    assert list((tmp_path / "out").iterdir()) == []
