"""GGUF metadata -> ModelConfig, for the architectures llama, qwen2 and qwen3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..config import ModelConfig
from ..errors import CorruptFileError, UnsupportedModelError
from .limits import check_layers, model_config

ROPE_FACTORS = "rope_freqs.weight"
_FAMILIES = ("llama", "qwen2", "qwen3")
_LLAMA3_PUBLISHED = (8192.0, 1.0, 4.0)  # original context, low and high frequency factor of all Llama 3.x
_Array = np.ndarray[Any, np.dtype[np.float32]]


def config_from_gguf(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    rope_factors: _Array | None,
    where: str,
) -> ModelConfig:
    """The config of a GGUF file. `shapes` tells which optional tensors exist; `rope_factors` is rope_freqs.weight.

    Raises CorruptFileError when a needed key is missing or has the wrong type, UnsupportedModelError when the file
    asks for something that is not implemented.
    """
    family = metadata.get("general.architecture")
    if family not in _FAMILIES:
        raise UnsupportedModelError(f"{where}: architecture {family!r} is not one of {', '.join(_FAMILIES)}")
    meta = _Metadata(metadata, family, where)
    if meta.integer("expert_count", 0):
        raise UnsupportedModelError(f"{where}: {family}.expert_count is set; mixtures of experts are not supported")
    if meta.integer("attention.sliding_window", 0):
        raise UnsupportedModelError(f"{where}: {family}.attention.sliding_window is set, which is not supported")
    hidden, heads = meta.integer("embedding_length"), meta.integer("attention.head_count")
    head_dim = meta.integer("attention.key_length", hidden // heads)
    if meta.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(f"{where}: keys and values of different lengths are not supported")
    if (rotary := meta.integer("rope.dimension_count", head_dim)) != head_dim:
        raise UnsupportedModelError(f"{where}: {family}.rope.dimension_count {rotary} is not the head size {head_dim}")
    embed = shapes.get("token_embd.weight", (0,))
    max_positions = meta.integer("context_length")
    values = {
        "family": family,
        "vocab_size": meta.integer("vocab_size", embed[0]),
        "hidden_size": hidden,
        "intermediate_size": meta.integer("feed_forward_length"),
        "num_layers": check_layers(meta.integer("block_count"), where),
        "num_heads": heads,
        "num_kv_heads": meta.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": meta.real("attention.layer_norm_rms_epsilon"),
        "tie_embeddings": "output.weight" not in shapes,
        "qkv_bias": "blk.0.attn_q.bias" in shapes,
        "out_bias": "blk.0.attn_output.bias" in shapes,
        "mlp_bias": "blk.0.ffn_down.bias" in shapes,
        "qk_norm": family == "qwen3",
        "rope": _rope(meta, head_dim, max_positions, rope_factors),
        "max_positions": max_positions,
    }
    return model_config(values, where)


def _rope(meta: _Metadata, head_dim: int, max_positions: int, factors: _Array | None) -> dict[str, Any]:
    theta = meta.real("rope.freq_base", 10_000.0)
    kind = meta.text("rope.scaling.type", "none")
    factor = meta.real("rope.scaling.factor", meta.real("rope.scale_linear", 1.0))
    if factors is not None:
        if kind != "none":
            raise UnsupportedModelError(f"{meta.where}: {ROPE_FACTORS} together with {kind} scaling is not supported")
        return _llama3(meta, theta, head_dim, factors)
    if kind in ("none", "linear"):
        scaled = factor != 1.0 and (kind == "linear" or "rope.scale_linear" in meta)
        return {"theta": theta, "kind": "linear", "factor": factor} if scaled else {"theta": theta}
    if kind == "yarn":
        # llama.cpp multiplies its own 0.1 ln(factor) + 1 by attn_factor; HF's attention_factor is the whole product.
        extra = meta.real("rope.scaling.attn_factor", meta.real("rope.scaling.yarn_attn_factor", 1.0))
        return {
            "theta": theta,
            "kind": "yarn",
            "factor": factor,
            "original_max_positions": meta.integer("rope.scaling.original_context_length", max_positions),
            "beta_fast": meta.real("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": meta.real("rope.scaling.yarn_beta_slow", 1.0),
            "attention_factor": None if extra == 1.0 else extra * (0.1 * math.log(factor) + 1.0),
        }
    raise UnsupportedModelError(f"{meta.where}: rope scaling {kind!r} is not one of none, linear, yarn")


def _llama3(meta: _Metadata, theta: float, head_dim: int, factors: _Array) -> dict[str, Any]:
    """The llama3 parameters behind a table of d/2 frequency divisors.

    The table is all that a GGUF file keeps of llama3 scaling (Llama 3.1 release, `apply_scaling`). The published
    parameters are tried first. Otherwise they are solved for: in the middle band the divisor f of wavelength w obeys
    (1/f - 1/factor) / (1 - 1/factor) = (original / w - low) / (high - low), a line in 1/w. Only ratios of
    (original, low, high) matter, so low = 1 loses nothing.
    """
    if factors.shape != (head_dim // 2,):
        raise CorruptFileError(f"{meta.where}: {ROPE_FACTORS} has {factors.size} values, expected {head_dim // 2}")
    table = factors.astype(np.float64)
    factor = float(f"{table.max():.6g}")  # the table is in single precision
    if not np.isfinite(table).all() or table.min() < 0.999:
        raise CorruptFileError(f"{meta.where}: {ROPE_FACTORS} holds values below 1")
    if factor == 1.0:
        return {"theta": theta}
    inverse_wavelength = theta ** (-np.arange(0, head_dim, 2) / head_dim) / (2 * math.pi)
    candidates = [_LLAMA3_PUBLISHED]
    band = (table > 1.0 + 1e-6) & (table < factor * (1 - 1e-6))
    if band.sum() >= 2:
        smooth = (1 / table[band] - 1 / factor) / (1 - 1 / factor)
        slope, intercept = np.polyfit(inverse_wavelength[band], smooth, 1)
        if slope > 0 and intercept < 0:
            candidates.append((float(round(slope * (-1 / intercept))), 1.0, 1.0 - 1.0 / float(intercept)))
    for original, low, high in candidates:
        high = float(f"{high:.5g}")
        smooth = np.clip((original * inverse_wavelength - low) / (high - low), 0.0, 1.0)
        if np.allclose(1 / ((1 - smooth) / factor + smooth), table, rtol=1e-4):
            return {
                "theta": theta,
                "kind": "llama3",
                "factor": factor,
                "original_max_positions": int(original),
                "low_freq_factor": low,
                "high_freq_factor": high,
            }
    raise UnsupportedModelError(f"{meta.where}: {ROPE_FACTORS} does not follow llama3 scaling")


class _Metadata:
    """Typed look-ups of `architecture.key`."""

    def __init__(self, values: Mapping[str, Any], family: str, where: str) -> None:
        self.values, self.family, self.where = values, family, where

    def __contains__(self, key: str) -> bool:
        return f"{self.family}.{key}" in self.values

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer. A per-layer array counts when all its values are the same."""
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()
        if isinstance(value, np.ndarray):
            raise UnsupportedModelError(f"{self.where}: {self.family}.{key} differs between layers")
        if not isinstance(value, int) or isinstance(value, bool) or value < (1 if default is None else 0):
            raise CorruptFileError(f"{self.where}: {self.family}.{key} is {value!r}, expected a positive integer")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A number; single precision is read as the shortest decimal that it stands for (1e-05, not 9.99e-06)."""
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise CorruptFileError(f"{self.where}: {self.family}.{key} is {value!r}, expected a number")
        return float(str(np.float32(value)))

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise CorruptFileError(f"{self.where}: {self.family}.{key} is {value!r}, expected a string")
        return value

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(f"{self.family}.{key}", default)
        if value is None:
            raise CorruptFileError(f"{self.where}: the metadata lacks {self.family}.{key}")
        return value
