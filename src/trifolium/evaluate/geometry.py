"""What a model's sizes cost: parameters, memory, and the weights that a pass must read.

Where memory is slow against arithmetic, a pass takes the time that its weights take to read. In a mixture of experts
these are the weights of all experts that any row of the pass chose, so that a pass of a block costs more than one of a
single row, and less when its rows must choose from a coreset. Shapes: E experts, k of them for a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ..config import ExpertsConfig, ModelConfig
from ..dtypes import DType

Shapes = Mapping[str, tuple[int, ...]]
DTYPES: tuple[DType, ...] = ("float32", "bfloat16", "int8")
"""Those whose bytes are known here."""
ROWS = (1, 8, 32, 64, 128)
CORESETS = (16, 32, 64, 128)
_FLOAT_BYTES = {"float32": 4, "bfloat16": 2}
_EMBED = "embed.weight"


def parameters(shapes: Shapes) -> int:
    """Numbers in all tensors."""
    return sum(prod(shape) for shape in shapes.values())


def active_parameters(config: ModelConfig, shapes: Shapes) -> int:
    """Numbers that one token's pass works with: k of E experts, and one row of embeddings that are no head as well."""
    return round(sum(prod(shape) * _share(config, name, 1, None) for name, shape in shapes.items()))


def memory_bytes(shapes: Shapes, dtype: DType) -> int:
    """Bytes of all tensors in memory."""
    return sum(_bytes(name, shape, dtype) for name, shape in shapes.items())


def distinct_experts(experts: ExpertsConfig, rows: int, coreset: int | None = None) -> float:
    """How many experts of a layer a pass of `rows` reads when routing is uniform.

    A row misses an expert with probability 1 - k/E, so that E (1 - (1 - k/E)^rows) are expected to be chosen by some
    row; and no more than the `coreset`, if rows must choose from one. Uneven routing reads fewer.
    """
    expected = experts.count * (1 - (1 - experts.top_k / experts.count) ** rows)
    return expected if coreset is None else min(expected, coreset)


def pass_bytes(config: ModelConfig, shapes: Shapes, rows: int, dtype: DType, coreset: int | None = None) -> int:
    """Bytes of weights that one pass of `rows` reads; caches and states, which are read too, are left out."""
    return round(sum(_bytes(name, s, dtype) * _share(config, name, rows, coreset) for name, s in shapes.items()))


def pass_table(config: ModelConfig, shapes: Shapes) -> list[dict[str, Any]]:
    """`pass_bytes` of ROWS, for all experts (`coreset` None) and each of CORESETS that the model's routing allows."""
    experts = config.experts
    coresets = (c for c in CORESETS if experts and experts.top_k <= c < experts.count)
    return [
        {
            "rows": rows,
            "coreset": coreset,
            "distinct_experts": distinct_experts(experts, rows, coreset) if experts else None,
            **{dtype: pass_bytes(config, shapes, rows, dtype, coreset) for dtype in ("bfloat16", "int8")},
        }
        for coreset in (None, *coresets)
        for rows in ROWS
    ]


def _share(config: ModelConfig, name: str, rows: int, coreset: int | None) -> float:
    """The part of a tensor that a pass reads."""
    if name == _EMBED and not config.tie_embeddings:
        return min(1.0, rows / config.vocab_size)
    if config.experts and name.endswith(("ffn.gate_up", "ffn.down")):
        return distinct_experts(config.experts, rows, coreset) / config.experts.count
    return 1.0


def _bytes(name: str, shape: tuple[int, ...], dtype: DType) -> int:
    """int8: one byte a weight and one float32 scale an output row of a matrix; all else stays float32."""
    if dtype != "int8":
        return prod(shape) * _FLOAT_BYTES[dtype]
    # Convolutions are two-dimensional too, but no matrices that anything is multiplied by.
    matrix = len(shape) == 3 or (len(shape) == 2 and name.endswith(".weight"))
    return prod(shape) + 4 * prod(shape[:-1]) if matrix else 4 * prod(shape)
