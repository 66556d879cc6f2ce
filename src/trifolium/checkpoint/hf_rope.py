"""Rotary positions in HF's config.json <-> RopeConfig, in the old form (`rope_scaling`) and the new one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..config import ModelConfig, RopeConfig
from ..errors import CorruptFileError, UnsupportedModelError
from .json_values import number
from .tables import HYBRIDS

_SCALED = ("linear", "dynamic", "yarn", "llama3")


def rope_from_hf(
    values: Mapping[str, Any], positions: int, head_dim: int | None, where: str
) -> tuple[dict[str, Any], int]:
    """(values of a RopeConfig, the positions that may be used).

    `head_dim`: the size of a head where only part of it may rotate, None where all of it does. The keys of mRoPE
    (`mrope_section`, `mrope_interleaved`) are ignored: they say which of a patch's three coordinates turns which pair,
    and the three are one and the same number for every text token, so that nothing but plain RoPE is left.
    """
    raw = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(raw, dict):
        raise CorruptFileError(f"{where}: rope_parameters is {raw!r}, expected an object")
    kind = raw.get("rope_type", raw.get("type", "default"))
    if kind not in ("default", *_SCALED):
        raise UnsupportedModelError(f"{where}: rope_type {kind!r} is not one of default, {', '.join(_SCALED)}")
    if any(isinstance(value, dict) for value in raw.values()):
        raise UnsupportedModelError(f"{where}: rope_parameters that differ by layer type are not supported")
    theta = number(raw, "rope_theta", where, number(values, "rope_theta", where, 10_000.0))
    rope: dict[str, Any] = {"theta": theta, "kind": kind, "rotary_dim": _rotary_dim(values, raw, head_dim, where)}
    if kind == "default":
        return rope, positions
    # transformers lets the config's own key win over the one inside the rope parameters.
    original = values.get("original_max_position_embeddings") or raw.get("original_max_position_embeddings")
    original = positions if original is None else original
    if kind == "yarn" and raw.get("factor") is None and isinstance(original, int) and original > 0:
        rope["factor"] = positions / original
    else:
        rope["factor"] = number(raw, "factor", where)
    if kind == "linear":
        return rope, positions
    if kind == "dynamic":
        # NTK scaling starts past max_position_embeddings and is meant to stretch them by the factor.
        return {**rope, "original_max_positions": positions}, int(positions * rope["factor"])
    rope["original_max_positions"] = original
    if kind == "llama3":
        rope |= {key: number(raw, key, where) for key in ("low_freq_factor", "high_freq_factor")}
        return rope, positions
    optional = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
    rope |= {key: raw[key] for key in optional if raw.get(key) is not None}
    stretched = int(original * rope["factor"]) if isinstance(original, int) else positions
    return rope, max(positions, stretched)


def rope_to_hf(config: ModelConfig) -> tuple[dict[str, Any], int]:
    """(the keys that describe rope, `max_position_embeddings`)."""
    rope = config.rope
    scaled, positions = _scaling(config)
    if config.family not in HYBRIDS:
        if rope.rotary_dim not in (None, config.head_dim):
            raise UnsupportedModelError(f"a {config.family} config.json can't express rotary_dim {rope.rotary_dim}")
        return {"rope_theta": rope.theta, "rope_scaling": scaled}, positions
    factor = _rotary_factor(rope.rotary_dim or config.head_dim, config.head_dim)
    if config.family == "qwen3_next":
        return {"rope_theta": rope.theta, "rope_scaling": scaled, "partial_rotary_factor": factor}, positions
    parameters = {"rope_type": rope.kind, "rope_theta": rope.theta, "partial_rotary_factor": factor}
    return {"rope_parameters": parameters | (scaled or {})}, positions


def _rotary_dim(values: Mapping[str, Any], raw: Mapping[str, Any], head_dim: int | None, where: str) -> int | None:
    """RopeConfig.rotary_dim: transformers' int(head_dim * partial_rotary_factor), which is a quarter unless given."""
    if head_dim is None:
        if raw.get("partial_rotary_factor") not in (None, 1, 1.0):
            factor = raw["partial_rotary_factor"]
            raise UnsupportedModelError(f"{where}: partial_rotary_factor {factor!r} is not supported")
        return None
    factor = number(raw, "partial_rotary_factor", where, number(values, "partial_rotary_factor", where, 0.25))
    rotary = int(head_dim * factor) if isinstance(head_dim, int) else 0
    if not 0 < factor <= 1 or rotary < 2 or rotary % 2:
        raise CorruptFileError(
            f"{where}: partial_rotary_factor {factor} of a head_dim of {head_dim} leaves no even number of dimensions"
        )
    return None if rotary == head_dim else rotary


def _rotary_factor(rotary_dim: int, head_dim: int) -> float:
    """The factor that reads as `rotary_dim` again: truncation must not take one off."""
    factor = rotary_dim / head_dim
    return factor if int(head_dim * factor) == rotary_dim else math.nextafter(factor, 1)


def _scaling(config: ModelConfig) -> tuple[dict[str, Any] | None, int]:
    """(the parameters of the scaling, `max_position_embeddings`)."""
    rope = config.rope
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
