"""config.json in both directions, held against transformers' own configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from tiny_checkpoints import FAMILIES, all_options, hf_model, tiny_config

from trifolium.checkpoint.hf_config import config_from_hf, config_to_hf, read_json
from trifolium.config import ModelConfig
from trifolium.errors import CorruptFileError, NotFoundError, UnsupportedModelError

CLASSES: dict[str, Any] = {
    "llama": transformers.LlamaConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}
MINIMAL = {
    "vocab_size": 97,
    "hidden_size": 128,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
ROPES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "dynamic", "factor": 3.0},
    YARN,
    {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.25, "truncate": False},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.5,
        "high_freq_factor": 5.0,
        "original_max_position_embeddings": 128,
    },
]


@pytest.mark.parametrize("config", all_options(), ids=lambda c: f"{c.family}-{c.tie_embeddings}-{c.out_bias}")
def test_a_config_that_transformers_saved(config: ModelConfig, tmp_path: Path) -> None:
    hf_model(config).config.save_pretrained(tmp_path)
    assert config_from_hf(read_json(tmp_path / "config.json"), "config.json") == config


@pytest.mark.parametrize("family", FAMILIES)
def test_absent_keys_mean_what_they_mean_to_transformers(family: str) -> None:
    minimal = {"model_type": family, **MINIMAL}
    full = json.loads(CLASSES[family](**MINIMAL).to_json_string(use_diff=False))
    assert config_from_hf(minimal, "minimal") == config_from_hf(full, "full")


@pytest.mark.parametrize("config", all_options(), ids=lambda c: f"{c.family}-{c.tie_embeddings}-{c.out_bias}")
def test_round_trip(config: ModelConfig) -> None:
    assert config_from_hf(config_to_hf(config), "back") == config


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: f"{rope['rope_type']}-{len(rope)}")
@pytest.mark.parametrize("family", FAMILIES)
def test_rope_in_its_old_and_new_form_and_back(rope: dict[str, Any], family: str) -> None:
    base = {**config_to_hf(tiny_config(family)), "max_position_embeddings": 512}
    del base["rope_theta"], base["rope_scaling"]
    new = config_from_hf({**base, "rope_parameters": {"rope_theta": 5e5, **rope}}, "new")
    old_rope = {"type" if key == "rope_type" else key: value for key, value in rope.items()}
    assert config_from_hf({**base, "rope_theta": 5e5, "rope_scaling": old_rope}, "old") == new
    assert new.rope.kind == rope["rope_type"]
    assert new.rope.theta == 5e5
    assert new.rope.factor == rope["factor"]
    for key in ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "low_freq_factor"):
        assert key not in rope or getattr(new.rope, key) == rope[key]
    back = config_to_hf(new)
    assert config_from_hf(back, "back") == new
    # transformers reads the written form, and means the same parameters by it.
    theirs = CLASSES[family].from_dict(back).rope_parameters
    assert theirs["rope_theta"] == 5e5
    assert {key: theirs[key] for key in rope} == rope


def test_the_positions_that_scaling_makes_usable() -> None:
    def positions(**changes: Any) -> int:
        return config_from_hf({**config_to_hf(tiny_config()), **changes}, "x").max_positions

    assert positions() == 512
    assert positions(rope_scaling=YARN) == 1024  # 4 * 256
    assert positions(rope_scaling={"rope_type": "yarn", "factor": 4.0}) == 2048  # the original defaults to all
    assert positions(rope_scaling={"rope_type": "dynamic", "factor": 3.0}) == 1536


def test_yarn_without_a_factor_uses_the_ratio() -> None:
    rope = {"rope_type": "yarn", "original_max_position_embeddings": 128}
    config = config_from_hf({**config_to_hf(tiny_config()), "rope_scaling": rope}, "x")
    assert config.rope.factor == 4.0
    assert config.rope.original_max_positions == 128


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_sliding_window", True),
        ("hidden_act", "gelu"),
        ("quantization_config", {"quant_method": "gptq"}),
        ("partial_rotary_factor", 0.5),
        ("layer_types", ["full_attention", "sliding_attention", "full_attention"]),
        ("model_type", "mixtral"),
        ("model_type", None),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=f"config.json.*{key}"):
        config_from_hf({**config_to_hf(tiny_config("qwen2")), key: value}, "config.json")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "longrope", "factor": 2.0},
        {"full_attention": {"rope_type": "default"}},
        {"rope_type": "default", "partial_rotary_factor": 0.25},
    ],
)
def test_unknown_rope_is_refused(rope: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"rope|rotary"):
        config_from_hf({**config_to_hf(tiny_config()), "rope_scaling": rope}, "config.json")


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": None},
        {"hidden_size": "48"},
        {"num_attention_heads": 0},
        {"num_attention_heads": -6},
        {"num_attention_heads": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": "x"},
        {"head_dim": 7},
        {"num_hidden_layers": 10**9},
        {"vocab_size": 1.5},
        {"rms_norm_eps": -1},
        {"rope_theta": "big"},
        {"rope_theta": 0},
        {"rope_scaling": "yarn"},
        {"rope_scaling": {"rope_type": "linear"}},
        {"rope_scaling": {"rope_type": "linear", "factor": 0.5}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        {"rope_scaling": {**YARN, "original_max_position_embeddings": -1}},
    ],
    ids=str,
)
def test_bad_values_name_the_file(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptFileError, match=r"config\.json"):
        config_from_hf({**config_to_hf(tiny_config()), **changes}, "config.json")


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (tiny_config("llama", qkv_bias=True), "biases"),
        (tiny_config("qwen2", qkv_bias=False), "biases"),
        (tiny_config("qwen3", qk_norm=False), "norms"),
        (tiny_config("llama", rope={"rotary_dim": 4}), "rotary_dim"),
    ],
)
def test_what_config_json_cannot_say_is_refused(config: ModelConfig, what: str) -> None:
    with pytest.raises(UnsupportedModelError, match=what):
        config_to_hf(config)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": NaN}', '{"a": Infinity}', "[" * 100_000, b"\xff\xfe{}"])
def test_bad_json_names_the_file(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(CorruptFileError, match=r"config\.json"):
        read_json(path)


def test_absent_and_absurd_json(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"config\.json"):
        read_json(tmp_path / "config.json")
    with (tmp_path / "big.json").open("wb") as file:
        file.truncate(1 << 30)  # sparse: a gigabyte of nothing must not be read
    with pytest.raises(CorruptFileError, match="larger than"):
        read_json(tmp_path / "big.json")
