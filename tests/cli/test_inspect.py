"""`trifolium inspect`."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from random_models import tiny_hybrid
from tiny_checkpoints import random_tensors, tiny_config, write_gguf
from trifolium.checkpoint import expected_shapes, open_checkpoint, write_hf
from trifolium.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["inspect", *arguments])
    out, err = capsys.readouterr()
    assert caught.value.code == code, err
    return err if code else out


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A tiny GGUF model with a byte-level tokenizer."""
    tokens: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [*(chr(33 + i) for i in range(94)), "<|end|>", "ab", "abc"],
        "tokenizer.ggml.token_type": [1] * 94 + [3, 1, 1],
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.eos_token_id": 94,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    config = tiny_config()
    return write_gguf(tmp_path / "tiny.gguf", config, random_tensors(config), metadata=tokens)


def test_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, str(path), "--json"))
    config = tiny_config()
    shapes = expected_shapes(config)
    parameters = sum(prod(shape) for shape in shapes.values())
    assert report["name"] == "tiny"
    assert report["path"] == str(path)
    assert (report["format"], report["licence"]) == ("gguf", "mit")
    assert report["fingerprint"] == open_checkpoint(path).fingerprint()
    assert report["config"]["head_dim"] == 10
    assert report["layers"] == [{"mixer": "attention", "feed_forward": "dense"}] * 3
    assert {name: tuple(shape) for name, shape in report["shapes"].items()} == shapes
    assert report["parameters"] == parameters == sum(t.numel() for t in random_tensors(config).values())
    memory = report["memory_bytes"]
    assert (memory["float32"], memory["bfloat16"]) == (4 * parameters, 2 * parameters)
    assert parameters < memory["int8"] < 2 * parameters
    assert report["tokenizer"] == {"vocab_size": 97, "eos": {"94": "<|end|>"}}
    assert report["tokenizer_error"] is None
    assert report["template"] is True
    assert report["adapter"] is None


def test_text(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, str(path))
    for part in ("3 x (attention + dense)", "97 tokens, eos <|end|>", "layers.0.mixer.qkv.weight", "[100, 48]", "mit"):
        assert part in text
    assert "layers.1." not in text


def test_a_model_without_a_tokenizer_is_shown_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_config("qwen2")
    write_hf(tmp_path / "model", config, random_tensors(config).items())
    report = json.loads(run(capsys, str(tmp_path / "model"), "--json"))
    assert report["tokenizer"] is None
    assert "tokenizer.json" in report["tokenizer_error"]
    assert report["template"] is False
    assert "none: " in run(capsys, str(tmp_path / "model"))


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"PK\x03\x04")
    for source in ("nothing-here", str(tmp_path / "bad.gguf")):
        error = run(capsys, source, code=2)
        assert error.startswith("error: ")
        assert error.count("\n") == 1


def test_sizes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, "qwen3.6-35b-a3b", "--json"))
    assert report["parameters"] == 34_660_610_688
    assert report["active_parameters"] == 2_946_431_616
    assert report["format"] == "sizes only"
    assert report["shapes"]["layers.39.ffn.gate_up"] == [256, 1024, 2048]
    reads = {(entry["coreset"], entry["rows"]): entry["bfloat16"] for entry in report["pass_bytes"]}
    assert reads[32, 32] < reads[64, 32] < reads[None, 32] < report["memory_bytes"]["bfloat16"]
    text = run(capsys, "clover-35b-a3b-preview")
    for part in (
        "30 x (delta_net + experts), 10 x (attention + experts)",
        "8 of 256, of size 512, and a shared one of 512",
        "adapter.layers.0.preview.right",
        "layers.3.mixer.q_norm.weight",
        "coreset 32 ",
    ):
        assert part in text
    assert "layers.1." not in text


def test_unknown_names_list_the_nearest_of_both_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    error = run(capsys, "qwen3.6-35b", code=2)
    assert "(nearest: nano, smollm2-135m, smollm2-135m-skills)" in error
    assert "sizes alone are known of qwen3.6-35b-a3b" in error


def test_a_hybrid_with_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_hybrid("clover_moe")
    write_hf(tmp_path / "model", config, random_tensors(config).items())
    report = json.loads(run(capsys, str(tmp_path / "model"), "--json"))
    assert report["fingerprint"] == open_checkpoint(tmp_path / "model").fingerprint()
    assert report["config"]["preview"]["mask_token"] == 95
    assert "3 of 7, of size 20, and a shared one of 26" in run(capsys, str(tmp_path / "model"))


@pytest.mark.real
def test_the_default_model(default_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = json.loads(run(capsys, str(default_gguf), "--json"))
    assert report["parameters"] == 134_515_008
    assert report["tokenizer"]["vocab_size"] == 49152
    assert "<|im_end|>" in report["tokenizer"]["eos"].values()
    assert report["template"] is True
