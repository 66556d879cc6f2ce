"""config.json of the hybrid families in both directions, held against transformers' own configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from hybrid_checkpoints import HYBRID_FAMILIES, hf_hybrid_config
from random_models import tiny_hybrid
from trifolium.checkpoint.hf_config import config_from_hf, config_to_hf, read_json
from trifolium.config import ModelConfig, PreviewConfig
from trifolium.errors import CorruptFileError, UnsupportedModelError

CLASSES: dict[str, Any] = {
    "qwen3_5_text": transformers.Qwen3_5TextConfig,
    "qwen3_5_moe_text": transformers.Qwen3_5MoeTextConfig,
    "qwen3_next": transformers.Qwen3NextConfig,
}
MINIMAL = {
    "vocab_size": 97,
    "hidden_size": 128,
    "intermediate_size": 80,
    "num_hidden_layers": 9,
    "num_attention_heads": 12,
}
EVERY = pytest.mark.parametrize("family", (*HYBRID_FAMILIES, "clover_moe"))


def read(family: str = "qwen3_5_moe_text", **changes: Any) -> ModelConfig:
    """The config of the tiny hybrid's config.json with changed keys; ... drops one."""
    values = {**config_to_hf(tiny_hybrid(family)), **changes}
    return config_from_hf({k: v for k, v in values.items() if v is not ...}, "config.json")


@pytest.mark.parametrize("family", HYBRID_FAMILIES)
def test_absent_keys_mean_what_they_mean_to_transformers(family: str) -> None:
    full = json.loads(CLASSES[family](**MINIMAL).to_json_string(use_diff=False))
    config = config_from_hf({"model_type": family, **MINIMAL}, "minimal")
    assert config == config_from_hf({**full, "intermediate_size": 80}, "full")
    assert config.mixers == ("delta_net",) * 3 + ("attention",) + ("delta_net",) * 3 + ("attention", "delta_net")
    assert config.rope.rotary_dim == 64


@pytest.mark.parametrize("family", HYBRID_FAMILIES)
def test_a_config_that_transformers_saved(family: str, tmp_path: Path) -> None:
    config = tiny_hybrid(family, intermediate_size=20 if family == "qwen3_5_moe_text" else 36)
    hf_hybrid_config(config).save_pretrained(tmp_path)
    assert config_from_hf(read_json(tmp_path / "config.json"), "config.json") == config


@pytest.mark.parametrize("family", HYBRID_FAMILIES)
def test_transformers_reads_what_is_written(family: str) -> None:
    config = tiny_hybrid(family, rope={"rotary_dim": 6, "theta": 1e6, "kind": "yarn", "factor": 2.0})
    theirs = CLASSES[family].from_dict(config_to_hf(config))
    assert int(theirs.head_dim * theirs.rope_parameters["partial_rotary_factor"]) == 6
    assert (theirs.rope_parameters["rope_theta"], theirs.rope_parameters["factor"]) == (1e6, 2.0)
    assert theirs.layer_types == ["linear_attention"] * 3 + ["full_attention"]
    assert theirs.linear_num_value_heads == 6
    if family == "qwen3_next":
        assert theirs.mlp_only_layers == [1]


@EVERY
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": True, "qkv_bias": True, "out_bias": True},
        {"output_gate": False, "rope": {"theta": 1e7}},
        {"mixers": ("attention",) * 4, "delta_net": None},
        {"rope": {"kind": "yarn", "factor": 4.0, "original_max_positions": 128, "rotary_dim": 12}},
    ],
)
def test_round_trip(family: str, changes: dict[str, Any]) -> None:
    config = tiny_hybrid(family, **changes)
    assert config_from_hf(config_to_hf(config), "back") == config


@pytest.mark.parametrize("head_dim", range(6, 260, 14))
def test_every_rotary_dim_survives_its_fraction(head_dim: int) -> None:
    for rotary in range(2, head_dim, 2):
        config = tiny_hybrid(head_dim=head_dim, rope={"rotary_dim": rotary})
        assert config_from_hf(config_to_hf(config), "back").rope.rotary_dim == rotary


def test_mrope_is_plain_rope_for_text() -> None:
    rope = {**config_to_hf(tiny_hybrid())["rope_parameters"], "mrope_interleaved": True, "mrope_section": [1, 2, 1]}
    assert read(rope_parameters=rope) == tiny_hybrid()


def test_full_attention_interval() -> None:
    assert read(layer_types=..., full_attention_interval=2).mixers == ("delta_net", "attention") * 2
    assert read(layer_types=...).mixers == ("delta_net",) * 3 + ("attention",)


def test_which_layers_of_qwen3_next_hold_experts() -> None:
    step = read("qwen3_next", decoder_sparse_step=2, mlp_only_layers=[3])
    assert step.feed_forwards == ("dense", "experts", "dense", "dense")
    assert read("qwen3_next", num_experts=0).feed_forwards == ("dense",) * 4
    assert read("qwen3_next", mlp_only_layers=...).feed_forwards == ("experts",) * 4


def test_unnormalised_routing() -> None:
    config = read("qwen3_next", norm_topk_prob=False)
    assert config.experts is not None
    assert config.experts.renormalise is False
    assert config_to_hf(config)["norm_topk_prob"] is False


def test_clover_has_defaults_but_for_its_mask() -> None:
    keys: dict[str, Any] = dict.fromkeys(
        ("block_size", "coreset_top_p", "prediction_offset", "num_shared_experts"), ...
    )
    assert read("clover_moe", **keys).preview == PreviewConfig(mask_token=95, block_size=32)
    full = read("clover_moe", coreset_top_p=0.75, prediction_offset=0, block_size=16)
    assert full.preview == PreviewConfig(mask_token=95, block_size=16, coreset_top_p=0.75, prediction_offset=0)
    assert config_from_hf(config_to_hf(full), "back") == full
    assert read("qwen3_5_moe_text", mask_token_id=95).preview is None


@pytest.mark.parametrize("family", ["qwen3_5_text", "qwen3_5_moe_text"])
def test_text_config_of_a_vision_model(family: str) -> None:
    text = config_to_hf(tiny_hybrid(family, tie_embeddings=True))
    del text["tie_word_embeddings"]
    outer = {"model_type": family.removesuffix("_text"), "text_config": text, "vision_config": {"depth": 2}}
    assert config_from_hf({**outer, "tie_word_embeddings": True}, "x") == tiny_hybrid(family, tie_embeddings=True)
    assert config_from_hf(outer, "x").tie_embeddings is False
    with pytest.raises(UnsupportedModelError, match="quantization_config"):
        config_from_hf({**outer, "quantization_config": {"quant_method": "fp8"}}, "x")
    for broken in (None, [], "text"):
        with pytest.raises(CorruptFileError, match="needs an object text_config"):
            config_from_hf({**outer, "text_config": broken}, "x")


@pytest.mark.parametrize(
    ("family", "changes", "error", "message"),
    [
        ("clover_moe", {"mask_token_id": ...}, CorruptFileError, "mask_token_id is missing; add"),
        ("clover_moe", {"mask_token_id": -1}, CorruptFileError, "preview.mask_token"),
        ("clover_moe", {"block_size": 0}, CorruptFileError, "preview.block_size"),
        ("clover_moe", {"coreset_top_p": 1.5}, CorruptFileError, "preview.coreset_top_p"),
        ("clover_moe", {"prediction_offset": 2}, CorruptFileError, "preview.prediction_offset"),
        ("clover_moe", {"num_shared_experts": 2}, UnsupportedModelError, "num_shared_experts 2"),
        ("qwen3_5_moe_text", {"num_experts_per_tok": 8}, CorruptFileError, "top_k 8 of only 7 experts"),
        ("qwen3_5_moe_text", {"num_experts": 0}, CorruptFileError, "num_experts is 0"),
        ("qwen3_5_moe_text", {"shared_expert_intermediate_size": -4}, CorruptFileError, "experts.shared_size"),
        ("qwen3_5_moe_text", {"norm_topk_prob": "maybe"}, CorruptFileError, "experts.renormalise"),
        ("qwen3_5_moe_text", {"mlp_only_layers": [1]}, UnsupportedModelError, "mlp_only_layers"),
        ("qwen3_next", {"mlp_only_layers": [4]}, CorruptFileError, "mlp_only_layers must list layers"),
        ("qwen3_next", {"mlp_only_layers": "all"}, CorruptFileError, "mlp_only_layers must list layers"),
        ("qwen3_next", {"decoder_sparse_step": 0}, CorruptFileError, "decoder_sparse_step"),
        ("qwen3_5_text", {"linear_num_value_heads": 5}, CorruptFileError, "value_heads 5 is not a multiple"),
        ("qwen3_5_text", {"linear_conv_kernel_dim": 10**9}, CorruptFileError, "delta_net.conv_width"),
        ("qwen3_5_text", {"linear_key_head_dim": "x"}, CorruptFileError, "linear_key_head_dim"),
        ("qwen3_5_text", {"num_key_value_heads": 4}, CorruptFileError, "num_heads 6 is not a multiple"),
        ("qwen3_5_text", {"layer_types": ["full_attention"]}, CorruptFileError, "each of the 4 layers"),
        ("qwen3_5_text", {"layer_types": "full"}, CorruptFileError, "each of the 4 layers"),
        (
            "qwen3_5_text",
            {"layer_types": ["linear_attention", "mamba", "full_attention", "mamba"]},
            UnsupportedModelError,
            "layer 1 is of type 'mamba'",
        ),
        ("qwen3_5_text", {"layer_types": [{}] * 4}, UnsupportedModelError, "layer 0 is of type"),
        ("qwen3_5_text", {"rope_parameters": {"partial_rotary_factor": 0.2}}, CorruptFileError, "no even number"),
        ("qwen3_5_text", {"rope_parameters": {"partial_rotary_factor": 2}}, CorruptFileError, "no even number"),
        ("qwen3_5_text", {"rope_parameters": {"partial_rotary_factor": "x"}}, CorruptFileError, "expected a number"),
        ("qwen3_5_text", {"head_dim": "x"}, CorruptFileError, "head_dim"),
        ("qwen3_5_text", {"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act"),
        ("qwen3_5_text", {"intermediate_size": ...}, CorruptFileError, "intermediate_size is None"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_refused_by_name(
    family: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=rf"(?s)config\.json.*{message}"):
        read(family, **changes)


@pytest.mark.parametrize(
    "config",
    [
        tiny_hybrid("qwen3_5_text", norm_offset=0),
        tiny_hybrid("qwen3_5_moe_text", qk_norm=False),
        tiny_hybrid("qwen3_5_moe_text", qkv_bias=True),
        tiny_hybrid("qwen3_5_moe_text", preview={"mask_token": 5}),
        tiny_hybrid("qwen3_5_moe_text", feed_forwards=("dense", "experts", "dense", "experts")),
        tiny_hybrid("clover_moe", preview=None),
    ],
    ids=range(6),
)
def test_what_config_json_cannot_say_is_refused(config: ModelConfig) -> None:
    with pytest.raises(UnsupportedModelError, match="can't express"):
        config_to_hf(config)
