"""The keys of config.json that only the hybrid families have: delta-net layers, mixtures of experts, previews.

qwen3_5_text, qwen3_5_moe_text and qwen3_next are transformers' model types, with the defaults of its configurations.
clover_moe is qwen3_5_moe_text with the keys of PreviewConfig (`mask_token_id`, `block_size`, `coreset_top_p`,
`prediction_offset`) and `num_shared_experts`, which is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config import ModelConfig
from ..errors import CorruptFileError, UnsupportedModelError
from .json_values import count
from .tables import HYBRIDS

WRAPPERS = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""Model types of vision models -> the type of the text model under their `text_config`."""

_MIXERS = {"linear_attention": "delta_net", "full_attention": "attention"}
_LAYER_TYPES = {ours: theirs for theirs, ours in _MIXERS.items()}


def text_values(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The values of the text model: those under `text_config` of a vision model's config.json, all of them elsewhere.

    What holds for both models at once (whether the embeddings are tied, how weights are quantised) stands outside.
    """
    if values.get("model_type") not in WRAPPERS:
        return values
    text = values.get("text_config")
    if not isinstance(text, dict):
        raise CorruptFileError(f"{where}: model_type {values['model_type']!r} needs an object text_config")
    shared = {key: values[key] for key in ("tie_word_embeddings", "quantization_config") if key in values}
    return {**shared, "model_type": WRAPPERS[values["model_type"]], **text}


def hybrid_from_hf(family: str, values: Mapping[str, Any], layers: int, where: str) -> dict[str, Any]:
    """The values of a ModelConfig that only hybrids have. Empty for the other families."""
    if family not in HYBRIDS:
        return {}
    found: dict[str, Any] = {
        "output_gate": bool(values.get("attn_output_gate", True)),
        "norm_offset": 1,
        "mixers": _mixers(values, layers, where),
        "feed_forwards": _feed_forwards(family, values, layers, where),
    }
    if "delta_net" in found["mixers"]:
        found["delta_net"] = {
            "key_heads": count(values, "linear_num_key_heads", where, 16),
            "value_heads": count(values, "linear_num_value_heads", where, 32),
            "key_dim": count(values, "linear_key_head_dim", where, 128),
            "value_dim": count(values, "linear_value_head_dim", where, 128),
            "conv_width": count(values, "linear_conv_kernel_dim", where, 4),
        }
    if "experts" in found["feed_forwards"]:
        found["experts"] = {
            "count": count(values, "num_experts", where, _experts_default(family)),
            "top_k": count(values, "num_experts_per_tok", where, 10 if family == "qwen3_next" else 8),
            "size": count(values, "moe_intermediate_size", where, 512),
            "shared_size": values.get("shared_expert_intermediate_size", 512),
            "renormalise": values.get("norm_topk_prob", True),
        }
    if family == "clover_moe":
        found["preview"] = _preview(values, where)
    return found


def hybrid_to_hf(config: ModelConfig) -> dict[str, Any]:
    """The keys of a hybrid's config.json beside those that all families have."""
    values: dict[str, Any] = {
        "attn_output_gate": config.output_gate,
        "layer_types": [_LAYER_TYPES[mixer] for mixer in config.mixers],
    }
    if net := config.delta_net:
        values |= {
            "linear_num_key_heads": net.key_heads,
            "linear_num_value_heads": net.value_heads,
            "linear_key_head_dim": net.key_dim,
            "linear_value_head_dim": net.value_dim,
            "linear_conv_kernel_dim": net.conv_width,
        }
    if experts := config.experts:
        values |= {
            "num_experts": experts.count,
            "num_experts_per_tok": experts.top_k,
            "moe_intermediate_size": experts.size,
            "shared_expert_intermediate_size": experts.shared_size,
            "norm_topk_prob": experts.renormalise,
        }
    if config.family == "qwen3_next":
        values["decoder_sparse_step"] = 1
        values["mlp_only_layers"] = [i for i, kind in enumerate(config.feed_forwards) if kind == "dense"]
    if preview := config.preview:
        values |= {
            "mask_token_id": preview.mask_token,
            "block_size": preview.block_size,
            "coreset_top_p": preview.coreset_top_p,
            "prediction_offset": preview.prediction_offset,
            "num_shared_experts": 1,
        }
    return values


def expressible(config: ModelConfig) -> bool:
    """Whether the config.json of a hybrid family can say this."""
    kinds = {"qwen3_5_text": {"dense"}, "qwen3_next": {"dense", "experts"}}.get(config.family, {"experts"})
    return (
        config.qkv_bias == config.out_bias
        and config.qk_norm
        and not config.mlp_bias
        and config.norm_offset == 1
        and set(config.feed_forwards) <= kinds
        and (config.preview is not None) == (config.family == "clover_moe")
    )


def _experts_default(family: str) -> int:
    return 512 if family == "qwen3_next" else 256


def _mixers(values: Mapping[str, Any], layers: int, where: str) -> tuple[str, ...]:
    types = values.get("layer_types")
    if types is None:
        interval = count(values, "full_attention_interval", where, 4)
        return tuple("delta_net" if (i + 1) % interval else "attention" for i in range(layers))
    if not isinstance(types, list) or len(types) != layers:
        raise CorruptFileError(f"{where}: layer_types must list one type for each of the {layers} layers")
    for i, kind in enumerate(types):
        if kind not in _LAYER_TYPES.values():
            raise UnsupportedModelError(
                f"{where}: layer {i} is of type {str(kind)[:80]!r}; only {', '.join(_MIXERS)} can be run"
            )
    return tuple(_MIXERS[kind] for kind in types)


def _feed_forwards(family: str, values: Mapping[str, Any], layers: int, where: str) -> tuple[str, ...]:
    """Which layers hold experts: all but the dense family's, and in qwen3_next those that two keys leave out."""
    dense = values.get("mlp_only_layers") or []
    step = count(values, "decoder_sparse_step", where, 1)
    if family == "qwen3_5_text":
        return ("dense",) * layers
    if not isinstance(dense, list) or not all(isinstance(i, int) and 0 <= i < layers for i in dense):
        raise CorruptFileError(f"{where}: mlp_only_layers must list layers between 0 and {layers - 1}")
    if family != "qwen3_next":
        if dense or step != 1:
            raise UnsupportedModelError(f"{where}: mlp_only_layers and decoder_sparse_step are for qwen3_next only")
        return ("experts",) * layers
    if values.get("num_experts") == 0:
        return ("dense",) * layers
    return tuple("dense" if i in dense or (i + 1) % step else "experts" for i in range(layers))


def _preview(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    if values.get("mask_token_id") is None:
        raise CorruptFileError(
            f"{where}: mask_token_id is missing; add the id of the token whose embedding stands for a mask"
        )
    if (shared := values.get("num_shared_experts", 1)) != 1:
        raise UnsupportedModelError(f"{where}: num_shared_experts {shared!r} is not supported, only 1 is")
    return {
        "mask_token": values["mask_token_id"],
        "block_size": values.get("block_size", 32),
        "coreset_top_p": values.get("coreset_top_p", 1.0),
        "prediction_offset": values.get("prediction_offset", 1),
    }
