"""HF `config.json` <-> ModelConfig, for every family that the name tables know (hybrids: see also hf_hybrid.py).

Defaults of absent keys are those of each family's configuration in transformers. Keys that would change what the
model computes and that are not implemented are refused by name; keys that don't (dropout, initialisers) are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..config import ModelConfig
from ..errors import CorruptFileError, NotFoundError, UnsupportedModelError
from .hf_hybrid import WRAPPERS, expressible, hybrid_from_hf, hybrid_to_hf, text_values
from .hf_rope import rope_from_hf, rope_to_hf
from .json_values import count
from .limits import MAX_JSON_BYTES, check_layers, model_config
from .tables import HYBRIDS

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "clover_moe": "CloverMoeForCausalLM",
}
_KV_HEADS = {"qwen2": 32, "qwen3": 32, "qwen3_next": 2, "qwen3_5_text": 4, "qwen3_5_moe_text": 2, "clover_moe": 2}
_HEAD_DIM = {"qwen3": 128} | dict.fromkeys(HYBRIDS, 256)
_DTYPES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises NotFoundError or CorruptFileError, both naming the file."""

    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise CorruptFileError(f"{path} is larger than {MAX_JSON_BYTES:,} bytes; that is no config or index")
        values = json.loads(path.read_bytes(), parse_constant=refuse)
    except FileNotFoundError:
        raise NotFoundError(f"no such file: {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is not valid JSON ({error}); fetch it again") from None
    if not isinstance(values, dict):
        raise CorruptFileError(f"{path} holds no JSON object")
    return values


def config_from_hf(values: Mapping[str, Any], where: str) -> ModelConfig:
    """The ModelConfig of a parsed config.json. `where` names the file in errors.

    Raises UnsupportedModelError naming the key that is not implemented, CorruptFileError for missing or bad values.
    """
    values = text_values(values, where)
    family = values.get("model_type")
    if family not in _ARCHITECTURES:
        known = ", ".join((*_ARCHITECTURES, *WRAPPERS))
        raise UnsupportedModelError(f"{where}: model_type {family!r} is not one of {known}")
    hybrid = family in HYBRIDS
    _refuse_unsupported(values, where, hybrid)
    hidden, heads = count(values, "hidden_size", where), count(values, "num_attention_heads", where)
    layers = check_layers(count(values, "num_hidden_layers", where), where)
    kv_heads = values.get("num_key_value_heads", _KV_HEADS.get(family, heads))
    head_dim = values.get("head_dim", _HEAD_DIM.get(family))
    head_dim = hidden // heads if head_dim is None else head_dim
    attention_bias = bool(values.get("attention_bias", False))
    positions = count(values, "max_position_embeddings", where, 2048 if family == "llama" else 32768)
    rope, max_positions = rope_from_hf(values, positions, head_dim if hybrid else None, where)
    found = hybrid_from_hf(family, values, layers, where)
    # Nothing is of this size in a model whose every layer holds experts, and published files leave it out.
    inner = found.get("experts", {}).get("size") if "dense" not in found.get("feed_forwards", ("dense",)) else None
    return model_config(
        {
            "family": family,
            "vocab_size": count(values, "vocab_size", where),
            "hidden_size": hidden,
            "intermediate_size": count(values, "intermediate_size", where, inner),
            "num_layers": layers,
            "num_heads": heads,
            "num_kv_heads": heads if kv_heads is None else kv_heads,
            "head_dim": head_dim,
            "rms_norm_eps": values.get("rms_norm_eps", 1e-6),
            "tie_embeddings": values.get("tie_word_embeddings", False),
            "qkv_bias": family == "qwen2" or attention_bias,
            "out_bias": family != "qwen2" and attention_bias,
            "mlp_bias": family == "llama" and bool(values.get("mlp_bias", False)),
            "qk_norm": hybrid or family == "qwen3",
            "rope": rope,
            "max_positions": max_positions,
            **found,
        },
        where,
    )


def config_to_hf(config: ModelConfig, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The config.json of a ModelConfig whose weights are stored as `dtype`.

    Rope is written in its old form (`rope_theta`, `rope_scaling`), which every version of transformers reads, but for
    the Qwen3.5 families and clover_moe, which were never published in it.
    Raises UnsupportedModelError for what the family's config.json can't say.
    """
    possible = {
        "llama": config.qkv_bias == config.out_bias and not config.qk_norm,
        "qwen2": config.qkv_bias and not (config.out_bias or config.mlp_bias or config.qk_norm),
        "qwen3": config.qkv_bias == config.out_bias and config.qk_norm and not config.mlp_bias,
    }
    hybrid = config.family in HYBRIDS
    if not (expressible(config) if hybrid else possible[config.family] and not config.norm_offset):
        raise UnsupportedModelError(f"a {config.family} config.json can't express these biases, norms and layers")
    rope, positions = rope_to_hf(config)
    values: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[config.family]],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": positions,
        **rope,
        "dtype": _DTYPES[dtype],
    }
    if hybrid:
        values |= hybrid_to_hf(config)
    if config.family != "qwen2":
        values["attention_bias"] = config.qkv_bias
    if config.family == "llama":
        values["mlp_bias"] = config.mlp_bias
    elif not hybrid:
        values["use_sliding_window"] = False
    return values


def _refuse_unsupported(values: Mapping[str, Any], where: str, hybrid: bool) -> None:
    layer_types = values.get("layer_types") or []
    faults: dict[str, bool] = {
        "hidden_act": values.get("hidden_act", "silu") != "silu",
        "use_sliding_window": bool(values.get("use_sliding_window", False)),
        "layer_types": not hybrid and any(kind != "full_attention" for kind in layer_types),
        # transformers ignores this key in the other families, whose heads rotate whole.
        "partial_rotary_factor": not hybrid and values.get("partial_rotary_factor") not in (None, 1, 1.0),
        "quantization_config": bool(values.get("quantization_config")),
    }
    if keys := [f"{key} {values[key]!r}"[:200] for key, refused in faults.items() if refused]:
        raise UnsupportedModelError(f"{where}: not supported: {', '.join(keys)}")
