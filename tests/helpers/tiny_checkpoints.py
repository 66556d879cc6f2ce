"""Tiny random models whose dimensions all differ, and files of them written by other libraries than ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

import random_models
from trifolium.checkpoint.names import expected_shapes, split, targets
from trifolium.config import ModelConfig

FAMILIES = ("llama", "qwen2", "qwen3")


def tiny_config(family: str = "llama", **changes: Any) -> ModelConfig:
    """The sizes of random_models with d 10, where H * d and K * d are none of the others either; qwen3 is tied."""
    return random_models.tiny_config(family, **{"head_dim": 10, "tie_embeddings": family == "qwen3", **changes})


def all_options() -> list[ModelConfig]:
    """Every family, tied and untied, with and without the optional biases."""
    return [
        tiny_config("llama"),
        tiny_config("llama", tie_embeddings=True),
        tiny_config("llama", qkv_bias=True, out_bias=True, mlp_bias=True),
        tiny_config("qwen2"),
        tiny_config("qwen2", tie_embeddings=True),
        tiny_config("qwen3"),
        tiny_config("qwen3", tie_embeddings=False, qkv_bias=True, out_bias=True),
    ]


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """float32 tensors in our names; norms are exact in bfloat16, as published ones are."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in expected_shapes(config).items()}
    return {k: v.bfloat16().float() if k.endswith("norm.weight") else v for k, v in tensors.items()}


def hf_model(config: ModelConfig, seed: int = 0) -> Any:
    """transformers' own model of the config, with random weights."""
    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    make_config, make_model = classes[config.family]
    options: dict[str, Any] = {"attention_bias": config.qkv_bias} if config.family != "qwen2" else {}
    if config.family == "llama":
        options["mlp_bias"] = config.mlp_bias
    torch.manual_seed(seed)
    model = make_model(
        make_config(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            tie_word_embeddings=config.tie_embeddings,
            max_position_embeddings=config.max_positions,
            **options,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def fused(model: Any, config: ModelConfig) -> dict[str, torch.Tensor]:
    """Our tensors of a transformers model, put together by hand and not by the name table."""
    state = model.state_dict()
    ours = {"embed.weight": state["model.embed_tokens.weight"], "norm.weight": state["model.norm.weight"]}
    if not config.tie_embeddings:
        ours["head.weight"] = state["lm_head.weight"]
    for i in range(config.num_layers):
        theirs, mine = f"model.layers.{i}.", f"layers.{i}."
        ours[mine + "mixer_norm.weight"] = state[theirs + "input_layernorm.weight"]
        ours[mine + "ffn_norm.weight"] = state[theirs + "post_attention_layernorm.weight"]
        for kind in ("weight", "bias"):
            for name, parts in {
                "mixer.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                "mixer.out": ("self_attn.o_proj",),
                "ffn.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
                "ffn.down": ("mlp.down_proj",),
                "mixer.q_norm": ("self_attn.q_norm",),
                "mixer.k_norm": ("self_attn.k_norm",),
            }.items():
                if f"{theirs}{parts[0]}.{kind}" in state:
                    ours[f"{mine}{name}.{kind}"] = torch.cat([state[f"{theirs}{part}.{kind}"] for part in parts])
    return ours


def write_gguf(
    path: Path,
    config: ModelConfig,
    tensors: Mapping[str, torch.Tensor],
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    """Write our tensors as GGUF with the gguf package; matrices get `kind`. `metadata` adds to or replaces keys."""
    writer = gguf.GGUFWriter(path, config.family)
    arch = config.family
    values: dict[str, Any] = {
        f"{arch}.block_count": config.num_layers,
        f"{arch}.context_length": config.max_positions,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_heads,
        f"{arch}.attention.head_count_kv": config.num_kv_heads,
        f"{arch}.attention.key_length": config.head_dim,
        f"{arch}.attention.value_length": config.head_dim,
        f"{arch}.rope.dimension_count": config.head_dim,
        f"{arch}.rope.freq_base": config.rope.theta,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "general.license": "mit",
        **(metadata or {}),
    }
    for key, value in values.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for target in targets(config, "gguf"):
        for source, (name, part) in zip(target.sources, split(target, tensors[target.name]), strict=True):
            array = part.numpy()
            if source.heads and arch == "llama":
                array = interleave(array, source.heads)
            if array.ndim == 1:
                writer.add_tensor(name, np.ascontiguousarray(array, dtype=np.float32))
            else:
                writer.add_tensor(name, quantise(array, kind), raw_dtype=kind)
    for name, array in (extra or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def interleave(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """HF's row order of q or k -> ggml's: row i of a head's first half is followed by row i of its second half."""
    size = array.shape[0] // heads
    order = [head * size + half * (size // 2) + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    return np.ascontiguousarray(array[order])


def quantise(array: np.ndarray[Any, Any], kind: gguf.GGMLQuantizationType) -> np.ndarray[Any, Any]:
    """The bytes of a matrix. K-quants, which the gguf package can't make, get arbitrary blocks of small scales."""
    values = np.ascontiguousarray(array, dtype=np.float32)
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        width = values.shape[1] // block * block_bytes
        # Bytes below 0x3c: whichever of them are a half-precision scale, it is finite and below 1.
        return np.random.default_rng(0).integers(0, 0x3C, (values.shape[0], width), dtype=np.uint8)
