"""What open_checkpoint takes, and the fingerprint."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from tiny_checkpoints import FAMILIES, random_tensors, tiny_config, write_gguf

import trifolium.checkpoint
from trifolium.checkpoint import open_checkpoint, write_hf
from trifolium.errors import DownloadError, NotFoundError


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRIFOLIUM_CACHE", str(tmp_path / "cache"))


def test_a_folder_with_one_gguf_file(tmp_path: Path) -> None:
    config = tiny_config()
    write_gguf(tmp_path / "a.gguf", config, random_tensors(config))
    assert open_checkpoint(str(tmp_path)).path == tmp_path / "a.gguf"
    write_gguf(tmp_path / "b.gguf", config, random_tensors(config))
    with pytest.raises(NotFoundError, match=r"2 GGUF files.*a\.gguf.*b\.gguf"):
        open_checkpoint(tmp_path)


def test_unknown_names_list_the_nearest_and_what_else_could_be_given() -> None:
    with pytest.raises(NotFoundError, match=r"nearest: smollm2-135m.*folder.*\.gguf.*hub id"):
        open_checkpoint("smollm-135")
    with pytest.raises(NotFoundError, match=r"none\.gguf"):
        open_checkpoint("none.gguf")
    # A Path never means a shelf name.
    with pytest.raises(NotFoundError, match="nearest"):
        open_checkpoint(Path("smollm2-135m"))


def test_a_hub_id_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(DownloadError, match=r"the hub gave no owner/model: \S+"):
        open_checkpoint("owner/model")


@pytest.mark.parametrize("family", FAMILIES)
def test_quantised_gguf_and_safetensors_share_a_fingerprint(family: str, tmp_path: Path) -> None:
    config = tiny_config(family, hidden_size=64, intermediate_size=96, num_heads=4, head_dim=16)
    tensors = random_tensors(config)
    kind = gguf.GGMLQuantizationType.Q8_0
    quantised = open_checkpoint(write_gguf(tmp_path / "q.gguf", config, tensors, kind=kind))
    plain = open_checkpoint(write_hf(tmp_path / "f32", config, tensors.items()))
    half = write_hf(tmp_path / "bf16", config, ((name, tensor.bfloat16()) for name, tensor in tensors.items()))
    assert quantised.fingerprint() == plain.fingerprint() == open_checkpoint(half).fingerprint()
    assert len(plain.fingerprint()) == 64


def test_the_fingerprint_sees_every_norm_and_the_sizes(tmp_path: Path) -> None:
    config = tiny_config("qwen3")
    tensors = random_tensors(config)
    prints = {open_checkpoint(write_hf(tmp_path / "base", config, tensors.items())).fingerprint()}
    norms = [name for name in tensors if name.endswith("norm.weight")]
    assert len(norms) == 1 + 4 * config.num_layers
    for number, name in enumerate(norms):
        changed = tensors[name].clone()
        changed[-1] += 1
        folder = write_hf(tmp_path / str(number), config, {**tensors, name: changed}.items())
        prints.add(open_checkpoint(folder).fingerprint())
    wider = tiny_config("qwen3", intermediate_size=82)
    same_norms = {**random_tensors(wider), **{name: tensors[name] for name in norms}}
    prints.add(open_checkpoint(write_hf(tmp_path / "wide", wider, same_norms.items())).fingerprint())
    assert len(prints) == 2 + len(norms)


def test_opening_reads_no_weights_and_streaming_can_be_repeated(tmp_path: Path) -> None:
    config = tiny_config()
    checkpoint = open_checkpoint(write_gguf(tmp_path / "x.gguf", config, random_tensors(config)))
    first, second = dict(checkpoint.tensors(torch.bfloat16)), dict(checkpoint.tensors(torch.bfloat16))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_exported_names_exist_and_others_do_not() -> None:
    for name in trifolium.checkpoint.__all__:
        assert getattr(trifolium.checkpoint, name).__module__.startswith("trifolium.checkpoint.")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        trifolium.checkpoint.nothing  # noqa: B018
