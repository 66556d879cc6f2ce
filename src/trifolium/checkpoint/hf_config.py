"""HF `config.json` <-> ModelConfig, for the model types llama, qwen2 and qwen3.

Defaults of absent keys are those of each family's configuration in transformers. Keys that would change what the
model computes and that are not implemented are refused by name; keys that don't (dropout, initialisers) are ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..config import ModelConfig, RopeConfig
from ..errors import CorruptFileError, NotFoundError, UnsupportedModelError
from .limits import MAX_JSON_BYTES, check_layers, model_config

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_DEFAULT_POSITIONS = {"llama": 2048, "qwen2": 32768, "qwen3": 32768}
_SCALED = ("linear", "dynamic", "yarn", "llama3")
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
    family = values.get("model_type")
    if family not in _ARCHITECTURES:
        raise UnsupportedModelError(f"{where}: model_type {family!r} is not one of {', '.join(_ARCHITECTURES)}")
    _refuse_unsupported(values, where)
    hidden, heads = _count(values, "hidden_size", where), _count(values, "num_attention_heads", where)
    kv_default = heads if family == "llama" else 32
    kv_heads = values.get("num_key_value_heads", kv_default)
    attention_bias = bool(values.get("attention_bias", False))
    positions = _count(values, "max_position_embeddings", where, _DEFAULT_POSITIONS[family])
    rope, max_positions = _rope(values, positions, where)
    head_dim = values.get("head_dim", 128 if family == "qwen3" else None)
    return model_config(
        {
            "family": family,
            "vocab_size": _count(values, "vocab_size", where),
            "hidden_size": hidden,
            "intermediate_size": _count(values, "intermediate_size", where),
            "num_layers": check_layers(_count(values, "num_hidden_layers", where), where),
            "num_heads": heads,
            "num_kv_heads": heads if kv_heads is None else kv_heads,
            "head_dim": hidden // heads if head_dim is None else head_dim,
            "rms_norm_eps": values.get("rms_norm_eps", 1e-6),
            "tie_embeddings": values.get("tie_word_embeddings", False),
            "qkv_bias": family == "qwen2" or attention_bias,
            "out_bias": family != "qwen2" and attention_bias,
            "mlp_bias": family == "llama" and bool(values.get("mlp_bias", False)),
            "qk_norm": family == "qwen3",
            "rope": rope,
            "max_positions": max_positions,
        },
        where,
    )


def config_to_hf(config: ModelConfig, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """The config.json of a ModelConfig whose weights are stored as `dtype`.

    Rope is written in its old form (`rope_theta`, `rope_scaling`): every version of transformers reads that one.
    Raises UnsupportedModelError for what the family's config.json can't say.
    """
    expressible = {
        "llama": config.qkv_bias == config.out_bias and not config.qk_norm,
        "qwen2": config.qkv_bias and not (config.out_bias or config.mlp_bias or config.qk_norm),
        "qwen3": config.qkv_bias == config.out_bias and config.qk_norm and not config.mlp_bias,
    }
    if not expressible[config.family]:
        raise UnsupportedModelError(f"a {config.family} config.json can't express these biases and norms")
    rope, positions = _rope_to_hf(config)
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
        "rope_theta": config.rope.theta,
        "rope_scaling": rope,
        "dtype": _DTYPES[dtype],
    }
    if config.family != "qwen2":
        values["attention_bias"] = config.qkv_bias
    if config.family == "llama":
        values["mlp_bias"] = config.mlp_bias
    else:
        values["use_sliding_window"] = False
    return values


def _refuse_unsupported(values: Mapping[str, Any], where: str) -> None:
    layer_types = values.get("layer_types") or []
    faults = {
        "hidden_act": values.get("hidden_act", "silu") != "silu",
        "use_sliding_window": bool(values.get("use_sliding_window", False)),
        "layer_types": any(kind != "full_attention" for kind in layer_types),
        "partial_rotary_factor": values.get("partial_rotary_factor") not in (None, 1, 1.0),
        "quantization_config": bool(values.get("quantization_config")),
    }
    if keys := [f"{key} {values[key]!r}"[:200] for key, refused in faults.items() if refused]:
        raise UnsupportedModelError(f"{where}: not supported: {', '.join(keys)}")


def _rope(values: Mapping[str, Any], positions: int, where: str) -> tuple[dict[str, Any], int]:
    """(values of a RopeConfig, the positions that may be used)."""
    raw = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(raw, dict):
        raise CorruptFileError(f"{where}: rope_parameters is {raw!r}, expected an object")
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind not in ("default", *_SCALED):
        raise UnsupportedModelError(f"{where}: rope_type {kind!r} is not one of default, {', '.join(_SCALED)}")
    if any(isinstance(value, dict) for value in raw.values()):
        raise UnsupportedModelError(f"{where}: rope_parameters that differ by layer type are not supported")
    if raw.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise UnsupportedModelError(f"{where}: partial_rotary_factor {raw['partial_rotary_factor']} is not supported")
    theta = _number(raw, "rope_theta", where, _number(values, "rope_theta", where, 10_000.0))
    rope: dict[str, Any] = {"theta": theta, "kind": kind}
    if kind == "default":
        return rope, positions
    # transformers lets the config's own key win over the one inside the rope parameters.
    original = values.get("original_max_position_embeddings") or raw.get("original_max_position_embeddings")
    original = positions if original is None else original
    if kind == "yarn" and raw.get("factor") is None and isinstance(original, int) and original > 0:
        rope["factor"] = positions / original
    else:
        rope["factor"] = _number(raw, "factor", where)
    if kind == "linear":
        return rope, positions
    if kind == "dynamic":
        # NTK scaling starts past max_position_embeddings and is meant to stretch them by the factor.
        return {**rope, "original_max_positions": positions}, int(positions * rope["factor"])
    rope["original_max_positions"] = original
    if kind == "llama3":
        rope |= {key: _number(raw, key, where) for key in ("low_freq_factor", "high_freq_factor")}
        return rope, positions
    optional = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
    rope |= {key: raw[key] for key in optional if raw.get(key) is not None}
    stretched = int(original * rope["factor"]) if isinstance(original, int) else positions
    return rope, max(positions, stretched)


def _rope_to_hf(config: ModelConfig) -> tuple[dict[str, Any] | None, int]:
    """(`rope_scaling`, `max_position_embeddings`)."""
    rope = config.rope
    if rope.rotary_dim not in (None, config.head_dim):
        raise UnsupportedModelError(f"a {config.family} config.json can't express rotary_dim {rope.rotary_dim}")
    if rope.kind == "default":
        return None, config.max_positions
    values: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "linear":
        return values, config.max_positions
    original = rope.original_max_positions or config.max_positions
    if rope.kind == "dynamic":
        return values, original
    values["original_max_position_embeddings"] = original
    keys = ["low_freq_factor", "high_freq_factor"] if rope.kind == "llama3" else _yarn_keys(rope)
    return values | {key: getattr(rope, key) for key in keys}, config.max_positions


def _yarn_keys(rope: RopeConfig) -> list[str]:
    given = [key for key in ("attention_factor", "mscale", "mscale_all_dim") if getattr(rope, key) is not None]
    return ["beta_fast", "beta_slow", "truncate", *given]


def _count(values: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = values.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CorruptFileError(f"{where}: {key} is {value!r}, expected a positive integer")
    return value


def _number(values: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = values.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise CorruptFileError(f"{where}: {key} is {value!r}, expected a number")
    return float(value)
