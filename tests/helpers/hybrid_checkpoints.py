"""transformers' own tiny hybrids, and our tensors of them put together by hand and not by the name table."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from trifolium.config import ModelConfig

HYBRID_FAMILIES = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
_CLASSES = {
    "qwen3_5_text": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
    "qwen3_5_moe_text": (transformers.Qwen3_5MoeTextConfig, transformers.Qwen3_5MoeForCausalLM),
    "qwen3_next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM),
}
_LAYER_TYPES = {"delta_net": "linear_attention", "attention": "full_attention"}


def hf_hybrid_config(config: ModelConfig) -> Any:
    """transformers' configuration of the config."""
    net, experts = config.delta_net, config.experts
    assert net is not None
    values: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": config.qkv_bias,
        "max_position_embeddings": config.max_positions,
        "layer_types": [_LAYER_TYPES[mixer] for mixer in config.mixers],
        "linear_num_key_heads": net.key_heads,
        "linear_num_value_heads": net.value_heads,
        "linear_key_head_dim": net.key_dim,
        "linear_value_head_dim": net.value_dim,
        "linear_conv_kernel_dim": net.conv_width,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope.theta,
            "partial_rotary_factor": (config.rope.rotary_dim or config.head_dim) / config.head_dim,
        },
    }
    if experts:
        values |= {
            "num_experts": experts.count,
            "num_experts_per_tok": experts.top_k,
            "moe_intermediate_size": experts.size,
            "shared_expert_intermediate_size": experts.shared_size,
        }
    if config.family == "qwen3_next":
        values["mlp_only_layers"] = [i for i, kind in enumerate(config.feed_forwards) if kind == "dense"]
    return _CLASSES[config.family][0](**values)


def hf_hybrid(config: ModelConfig, seed: int = 0) -> Any:
    """transformers' own model of the config, with random weights."""
    torch.manual_seed(seed)
    model = _CLASSES[config.family][1](hf_hybrid_config(config))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def fused_hybrid(model: Any, config: ModelConfig) -> dict[str, torch.Tensor]:
    """Our tensors of a transformers model."""
    state = model.state_dict()
    ours = {"embed.weight": state["model.embed_tokens.weight"], "norm.weight": state["model.norm.weight"]}
    if not config.tie_embeddings:
        ours["head.weight"] = state["lm_head.weight"]
    for i, (mixer, feed_forward) in enumerate(zip(config.mixers, config.feed_forwards, strict=True)):
        layer = {k.removeprefix(f"model.layers.{i}."): v for k, v in state.items() if f".layers.{i}." in k}
        mine = {
            "mixer_norm.weight": layer["input_layernorm.weight"],
            "ffn_norm.weight": layer["post_attention_layernorm.weight"],
            **(_attention(layer) if mixer == "attention" else _delta_net(layer, config)),
            **(_dense(layer) if feed_forward == "dense" else _experts(layer)),
        }
        ours |= {f"layers.{i}.{name}": tensor for name, tensor in mine.items()}
    return ours


def _attention(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    ours = {f"mixer.{name}.weight": layer[f"self_attn.{name}.weight"] for name in ("q_norm", "k_norm")}
    for kind in ("weight", "bias"):
        if f"self_attn.q_proj.{kind}" in layer:
            ours[f"mixer.qkv.{kind}"] = torch.cat([layer[f"self_attn.{x}_proj.{kind}"] for x in "qkv"])
            ours[f"mixer.out.{kind}"] = layer[f"self_attn.o_proj.{kind}"]
    return ours


def _delta_net(layer: dict[str, torch.Tensor], config: ModelConfig) -> dict[str, torch.Tensor]:
    theirs = {k.removeprefix("linear_attn."): v for k, v in layer.items() if k.startswith("linear_attn.")}
    if "in_proj_qkvz.weight" in theirs:
        parts = _by_the_forward_pass(theirs, config)
    else:
        parts = [theirs[f"in_proj_{x}.weight"] for x in ("qkv", "z", "b", "a")]
    return {
        "mixer.proj.weight": torch.cat(parts),
        "mixer.conv": theirs["conv1d.weight"][:, 0],
        "mixer.decay_log": theirs["A_log"],
        "mixer.decay_bias": theirs["dt_bias"],
        "mixer.gate_norm.weight": theirs["norm.weight"],
        "mixer.out.weight": theirs["out_proj.weight"],
    }


def _by_the_forward_pass(theirs: dict[str, torch.Tensor], config: ModelConfig) -> list[torch.Tensor]:
    """q, k, v, z, b, a of Qwen3-Next, ordered by the function that transformers' forward pass orders them with."""
    order = transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet.fix_query_key_value_ordering
    net = config.delta_net
    assert net is not None
    sizes = type(
        "Sizes",
        (),
        {
            "num_k_heads": net.key_heads,
            "num_v_heads": net.value_heads,
            "head_k_dim": net.key_dim,
            "head_v_dim": net.value_dim,
        },
    )
    # Each column of the weights is one "token" [1, D, rows] to it.
    qkvz, ba = theirs["in_proj_qkvz.weight"].T[None], theirs["in_proj_ba.weight"].T[None]
    return [part.reshape(config.hidden_size, -1).T for part in order(sizes, qkvz, ba)]


def _dense(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        "ffn.gate_up.weight": torch.cat([layer["mlp.gate_proj.weight"], layer["mlp.up_proj.weight"]]),
        "ffn.down.weight": layer["mlp.down_proj.weight"],
    }


def _experts(layer: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    shared = "mlp.shared_expert."
    return {
        "ffn.router.weight": layer["mlp.gate.weight"],
        "ffn.gate_up": layer["mlp.experts.gate_up_proj"],
        "ffn.down": layer["mlp.experts.down_proj"],
        "ffn.shared.gate_up.weight": torch.cat([layer[shared + "gate_proj.weight"], layer[shared + "up_proj.weight"]]),
        "ffn.shared.down.weight": layer[shared + "down_proj.weight"],
        "ffn.shared_gate.weight": layer["mlp.shared_expert_gate.weight"],
    }
