"""Whether a folder's preview tensors are all there: they make a clover_moe model, or none of them is there."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..config import ModelConfig
from ..errors import TensorMismatchError
from .tables import DELTA_NET, PREVIEW_SUFFIXES


def check_previews(config: ModelConfig, found: Collection[str], where: str) -> None:
    """Raises TensorMismatchError when a clover_moe model lacks preview tensors, or another model has some.

    `found`: the tensors' names as transformers has them.
    """
    lacking: dict[int, list[str]] = {}
    for layer, mixer in enumerate(config.mixers):
        if mixer == "delta_net":
            names = {suffix: DELTA_NET.replace("{i}", str(layer)) + suffix for suffix in PREVIEW_SUFFIXES}
            lacking[layer] = [suffix for suffix, name in names.items() if name not in found]
    having = {layer: missing for layer, missing in lacking.items() if len(missing) < len(PREVIEW_SUFFIXES)}
    clover = config.family == "clover_moe"
    if (clover and not any(lacking.values())) or (not clover and not having):
        return
    groups: dict[str, list[int]] = {}
    for layer, missing in lacking.items():
        state = "have all four" if not missing else f"lack {', '.join(missing)}" if layer in having else "have none"
        groups.setdefault(state, []).append(layer)
    state = "; ".join(f"layers {_ranges(layers)} {state}" for state, layers in groups.items())
    need = f"model_type clover_moe needs all four ({', '.join(PREVIEW_SUFFIXES)}) in every delta-net layer"
    advice = (
        "fetch the missing ones, or, for a model that only decodes token by token, set model_type to "
        "qwen3_5_moe_text and remove the others"
        if clover
        else f"config.json says {config.family}, which has none: set model_type to clover_moe and add mask_token_id, "
        "or remove these tensors"
    )
    raise TensorMismatchError(f"{where}: preview tensors are mixed: {state}. {need}; {advice}")


def _ranges(layers: Iterable[int]) -> str:
    """0, 1, 2, 5 -> "0-2, 5"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
