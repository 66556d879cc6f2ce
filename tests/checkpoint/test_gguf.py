"""The GGUF reader, on files that the gguf package wrote, and on damaged ones."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_checkpoints import FAMILIES, all_options, hf_model, quantise, random_tensors, tiny_config, write_gguf
from transformers import LlamaConfig
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from trifolium.checkpoint import gguf as reader_module
from trifolium.checkpoint import open_checkpoint
from trifolium.checkpoint.gguf_header import read_header
from trifolium.checkpoint.shelf import DEFAULT_MODEL, find
from trifolium.config import ModelConfig
from trifolium.errors import CorruptFileError, NotFoundError, TensorMismatchError, TrifoliumError, UnsupportedModelError

EASY = [Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]
K_QUANTS = [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K]


def wide(family: str = "llama", width: int = 64, **changes: Any) -> ModelConfig:
    """Rows long enough for the blocks of quantised types: H * d, D and F are multiples of `width`."""
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_heads": 4, "head_dim": width // 4}
    return tiny_config(family, num_layers=2, num_kv_heads=2, **{**sizes, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    config = tiny_config()
    return write_gguf(tmp_path / "tiny.gguf", config, random_tensors(config))


@pytest.mark.parametrize("config", all_options(), ids=lambda c: f"{c.family}-{c.tie_embeddings}-{c.out_bias}")
def test_every_family_comes_back_in_our_names_and_row_order(config: ModelConfig, tmp_path: Path) -> None:
    tensors = random_tensors(config)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "tiny.gguf", config, tensors))
    assert checkpoint.config == config
    assert (checkpoint.name, checkpoint.format, checkpoint.licence) == ("tiny", "gguf", "mit")
    found = dict(checkpoint.tensors(torch.float32))
    assert set(found) == set(tensors)
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_the_llama_row_order_is_that_of_transformers(tmp_path: Path) -> None:
    config = tiny_config(head_dim=8, num_heads=6)  # their GGUF reader knows no head size beside D / H
    path = write_gguf(tmp_path / "tiny.gguf", config, random_tensors(config), metadata={"general.name": "tiny"})
    theirs = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=hf_model(config))["tensors"]
    ours = dict(open_checkpoint(path).tensors(torch.float32))
    for i in range(config.num_layers):
        parts = [torch.as_tensor(theirs[f"model.layers.{i}.self_attn.{name}_proj.weight"]) for name in "qkv"]
        assert torch.equal(ours[f"layers.{i}.mixer.qkv.weight"], torch.cat(parts))


@pytest.mark.parametrize("kind", EASY, ids=lambda kind: kind.name)
@pytest.mark.parametrize("family", FAMILIES)
def test_quantised_types(kind: Kind, family: str, tmp_path: Path) -> None:
    config = wide(family)
    tensors = random_tensors(config)
    found = dict(open_checkpoint(write_gguf(tmp_path / "q.gguf", config, tensors, kind=kind)).tensors(torch.float32))
    for name, tensor in tensors.items():
        expected = tensor
        if tensor.ndim == 2:  # rows are quantised one by one, so their order doesn't matter
            expected = torch.from_numpy(gguf.quants.dequantize(quantise(tensor.numpy(), kind), kind).copy())
        assert torch.equal(found[name], expected.reshape(tensor.shape)), name


@pytest.mark.parametrize("kind", K_QUANTS, ids=lambda kind: kind.name)
def test_k_quants(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "_CHUNK", 1000)  # a few rows at a time, and a ragged end
    config = wide("qwen2", 256, vocab_size=7)
    tensors = random_tensors(config)
    found = dict(open_checkpoint(write_gguf(tmp_path / "q.gguf", config, tensors, kind=kind)).tensors(torch.float32))
    for name in ("embed.weight", "layers.1.ffn.down.weight", "layers.0.mixer.out.weight"):
        raw = quantise(tensors[name].numpy(), kind)
        expected = torch.from_numpy(gguf.quants.dequantize(raw, kind).copy())
        assert torch.isfinite(expected).all()
        assert expected.abs().sum() > 0
        assert torch.equal(found[name], expected.reshape(tensors[name].shape))


def test_types_that_cannot_be_dequantised_are_refused_when_opened(tmp_path: Path) -> None:
    config = tiny_config()
    extra = {"rope_freqs.weight": np.ones(5, dtype=np.int8)}
    with pytest.raises(UnsupportedModelError, match="I8"):
        open_checkpoint(write_gguf(tmp_path / "i8.gguf", config, random_tensors(config), extra=extra))


def test_truncated_anywhere(path: Path) -> None:
    whole = path.read_bytes()
    data = min(tensor.offset for tensor in read_header(path).tensors.values())
    for size in [*range(0, data, 7), *range(data, len(whole), 4999), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptFileError, match=r"tiny\.gguf"):
            open_checkpoint(path)


def patched(path: Path, offset: int, form: str, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack(form, value))


@pytest.mark.parametrize("offset", [8, 16, 24], ids=["tensors", "pairs", "key length"])
@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 2**40, 10**6])
def test_absurd_counts_cost_nothing(path: Path, offset: int, value: int) -> None:
    patched(path, offset, "<Q", value)
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(CorruptFileError):
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 2


def test_an_absurd_array_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "array.gguf"
    for item in (0, 8, 12):  # bytes, strings, doubles
        pair = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, item, 2**61)
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair + bytes(100))
        with pytest.raises(CorruptFileError, match=r"array\.gguf"):
            read_header(path)


def header_with(tensor: bytes = b"", *, version: int = 3, pairs: list[bytes] | None = None) -> bytes:
    pairs = pairs or []
    head = b"GGUF" + struct.pack("<IQQ", version, 1 if tensor else 0, len(pairs)) + b"".join(pairs) + tensor
    return head + bytes(256)


def info(name: bytes = b"t", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return struct.pack("<Q", len(name)) + name + shape + struct.pack("<IQ", kind, offset)


def number(key: bytes, value: int) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, value)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", CorruptFileError, "not a GGUF"),
        (b"PK\x03\x04" + bytes(100), CorruptFileError, "not a GGUF"),
        (header_with(version=1), UnsupportedModelError, "version 1"),
        (header_with(version=3 << 24), UnsupportedModelError, "big endian"),
        (header_with(info(dims=(2**40, 2**40))), CorruptFileError, "should end at"),
        (header_with(info(dims=(0,))), CorruptFileError, "shape"),
        (header_with(info(dims=(1,) * 5)), CorruptFileError, "5 dimensions"),
        (header_with(info(offset=2**63)), CorruptFileError, "should end at"),
        (header_with(info(offset=7)), CorruptFileError, "aligned"),
        (header_with(info(kind=9999)), UnsupportedModelError, "unknown type 9999"),
        (header_with(info(kind=2, dims=(33,))), CorruptFileError, "rows of 33"),
        (header_with(info(name=b"\xff")), CorruptFileError, "UTF-8"),
        (header_with(pairs=[number(b"a", 1), number(b"a", 2)]), CorruptFileError, "twice"),
        (header_with(pairs=[number(b"general.alignment", 3)], tensor=info()), CorruptFileError, "alignment"),
        (header_with(pairs=[number(b"general.alignment", 0)], tensor=info()), CorruptFileError, "alignment"),
        (header_with(pairs=[number(b"split.count", 4)]), UnsupportedModelError, "4 parts"),
        (header_with(pairs=[struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77)]), CorruptFileError, "unknown type 77"),
        (
            header_with(pairs=[struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 9, 1)]),
            CorruptFileError,
            "unknown type 9",
        ),
        (header_with(info()), UnsupportedModelError, "architecture None"),
    ],
)
def test_hostile_headers(content: bytes, error: type[Exception], message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path / "bad.gguf")


def test_a_tensor_that_appears_twice(tmp_path: Path) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + info() + info() + bytes(256)
    (tmp_path / "bad.gguf").write_bytes(head)
    with pytest.raises(CorruptFileError, match="appears twice"):
        open_checkpoint(tmp_path / "bad.gguf")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_anywhere_in_the_header_is_an_error_of_ours_or_harmless(path: Path, data: st.DataObject) -> None:
    whole = path.read_bytes()
    end = min(tensor.offset for tensor in read_header(path).tensors.values())
    start = data.draw(st.integers(0, end - 1))
    damage = data.draw(st.binary(min_size=1, max_size=12))
    path.write_bytes(whole[:start] + damage + whole[start + len(damage) :])
    try:
        checkpoint = open_checkpoint(path)
        checkpoint.fingerprint()
    except TrifoliumError:
        pass
    finally:
        path.write_bytes(whole)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_header(tmp_path / "none.gguf")


def test_faults_of_the_tensors_are_listed_in_gguf_names(tmp_path: Path) -> None:
    config = tiny_config()
    extra = {"blk.9.attn_q.weight": np.zeros((2, 3), dtype=np.float32)}
    with pytest.raises(TensorMismatchError) as caught:
        write_gguf(
            tmp_path / "x.gguf", config, random_tensors(config), extra=extra, metadata={"llama.feed_forward_length": 81}
        )
        open_checkpoint(tmp_path / "x.gguf")
    assert "unexpected: blk.9.attn_q.weight [2, 3]" in str(caught.value)
    assert "mis-shaped: blk.2.ffn_down.weight is [48, 80], expected [48, 81]" in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"general.architecture": "gemma3"}, UnsupportedModelError, "gemma3"),
        ({"llama.expert_count": 8}, UnsupportedModelError, "expert_count"),
        ({"llama.attention.sliding_window": 4096}, UnsupportedModelError, "sliding_window"),
        ({"llama.rope.dimension_count": 4}, UnsupportedModelError, "dimension_count"),
        ({"llama.attention.value_length": 12}, UnsupportedModelError, "different lengths"),
        ({"llama.rope.scaling.type": "longrope"}, UnsupportedModelError, "longrope"),
        ({"llama.attention.head_count_kv": [2, 2, 1]}, UnsupportedModelError, "differs between layers"),
        ({"llama.block_count": "three"}, CorruptFileError, "block_count"),
        ({"llama.block_count": 0}, CorruptFileError, "block_count"),
        ({"llama.block_count": 4_000_000_000}, CorruptFileError, "layers"),
        ({"llama.rope.freq_base": float("nan")}, CorruptFileError, "freq_base"),
        ({"llama.rope.scaling.type": 7}, CorruptFileError, "scaling.type"),
        ({"llama.attention.head_count_kv": 4}, CorruptFileError, "multiple"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 0.5}, CorruptFileError, "factor"),
    ],
    ids=str,
)
def test_metadata_that_cannot_be_used(
    metadata: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    config = tiny_config()
    write_gguf(tmp_path / "x.gguf", config, random_tensors(config), metadata=metadata)
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path / "x.gguf")


def test_a_missing_key_is_named(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"llama.context_length", b"llama.context_lengtt"))
    with pytest.raises(CorruptFileError, match=r"lacks llama\.context_length"):
        open_checkpoint(path)


def test_head_counts_may_be_given_by_layer(tmp_path: Path) -> None:
    config = tiny_config()
    metadata = {"llama.attention.head_count_kv": [2, 2, 2]}
    write_gguf(tmp_path / "x.gguf", config, random_tensors(config), metadata=metadata)
    assert open_checkpoint(tmp_path / "x.gguf").config == config


@pytest.mark.parametrize(
    ("metadata", "rope"),
    [
        ({"scaling.type": "linear", "scaling.factor": 2.5}, {"kind": "linear", "factor": 2.5}),
        ({"scale_linear": 4.0}, {"kind": "linear", "factor": 4.0}),
        (
            {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 128},
            {"kind": "yarn", "factor": 4.0, "original_max_positions": 128},
        ),
        (
            {
                "scaling.type": "yarn",
                "scaling.factor": 4.0,
                "scaling.original_context_length": 128,
                "scaling.attn_factor": 2.0,
                "scaling.yarn_beta_fast": 16.0,
                "scaling.yarn_beta_slow": 2.0,
            },
            {
                "kind": "yarn",
                "factor": 4.0,
                "original_max_positions": 128,
                "attention_factor": pytest.approx(2.0 * (0.1 * np.log(4.0) + 1.0)),
                "beta_fast": 16.0,
                "beta_slow": 2.0,
            },
        ),
    ],
)
def test_rope_scaling(metadata: dict[str, Any], rope: dict[str, Any], tmp_path: Path) -> None:
    config = tiny_config("qwen2")
    keys = {f"qwen2.rope.{key}": value for key, value in metadata.items()}
    write_gguf(tmp_path / "x.gguf", config, random_tensors(config), metadata=keys)
    found = open_checkpoint(tmp_path / "x.gguf").config.rope
    assert {key: getattr(found, key) for key in rope} == rope


def llama3_factors(head_dim: int, theta: float, **rope: float) -> np.ndarray[Any, Any]:
    """The divisors of the frequencies, from transformers' own llama3 scaling."""
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "llama3", "rope_theta": theta, **rope},
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    return np.asarray(plain / scaled.numpy(), dtype=np.float32)


@pytest.mark.parametrize(
    ("factor", "low", "high", "original"),
    [(8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (8.0, 1.0, 8.0, 4096), (4.0, 1.0, 3.0, 2048)],
)
def test_llama3_parameters_are_found_behind_rope_freqs(
    factor: float, low: float, high: float, original: int, tmp_path: Path
) -> None:
    config = tiny_config(head_dim=64, num_heads=2, num_kv_heads=1, rope={"theta": 500_000.0})
    names = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": original}
    factors = llama3_factors(64, 500_000.0, factor=factor, **names)
    assert 1 < len(np.unique(factors)) < 32
    extra = {"rope_freqs.weight": factors}
    write_gguf(tmp_path / "x.gguf", config, random_tensors(config), extra=extra)
    rope = open_checkpoint(tmp_path / "x.gguf").config.rope
    assert (rope.kind, rope.theta, rope.factor) == ("llama3", 500_000.0, factor)
    assert rope.original_max_positions == pytest.approx(original, rel=1e-3)
    assert rope.low_freq_factor == low
    assert rope.high_freq_factor == pytest.approx(high, rel=1e-3)


@pytest.mark.parametrize(
    ("factors", "error", "message"),
    [
        (np.ones(4), CorruptFileError, "4 values, expected 5"),
        (np.full(5, np.nan), CorruptFileError, "below 1"),
        (np.full(5, 0.1), CorruptFileError, "below 1"),
        (np.array([8.0, 1.0, 8.0, 1.0, 8.0]), UnsupportedModelError, "llama3"),
    ],
)
def test_other_rope_freqs_are_not_dropped_silently(
    factors: np.ndarray[Any, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    config = tiny_config()
    extra = {"rope_freqs.weight": factors.astype(np.float32)}
    write_gguf(tmp_path / "x.gguf", config, random_tensors(config), extra=extra)
    with pytest.raises(error, match=message):
        open_checkpoint(tmp_path / "x.gguf")


def test_rope_freqs_of_ones_scale_nothing(tmp_path: Path) -> None:
    config = tiny_config()
    extra = {"rope_freqs.weight": np.ones(5, dtype=np.float32)}
    write_gguf(tmp_path / "x.gguf", config, random_tensors(config), extra=extra)
    assert open_checkpoint(tmp_path / "x.gguf").config == config


@pytest.mark.real
def test_the_default_model(default_gguf: Path) -> None:
    checkpoint = open_checkpoint(default_gguf)
    config = checkpoint.config
    assert (config.family, config.num_layers, config.hidden_size, config.vocab_size) == ("llama", 30, 576, 49152)
    assert config.rms_norm_eps == 1e-5
    assert config.tie_embeddings
    assert checkpoint.fingerprint() == find(DEFAULT_MODEL).fingerprint
    name, embed = next(checkpoint.tensors(torch.bfloat16))
    assert (name, embed.shape, embed.dtype) == ("embed.weight", (49152, 576), torch.bfloat16)
    assert 0.05 < embed.float().std() < 0.5
