"""The arithmetic of sizes, held against transformers' own model and against counting by hand."""

from __future__ import annotations

import json
import random
from importlib import resources
from math import prod
from typing import Any

import pytest
import torch
import transformers

from random_models import tiny_config, tiny_hybrid
from trifolium.checkpoint import expected_shapes
from trifolium.checkpoint.geometry import geometries, geometry, nearest_geometries
from trifolium.config import ExpertsConfig
from trifolium.errors import NotFoundError
from trifolium.evaluate.geometry import (
    active_parameters,
    distinct_experts,
    memory_bytes,
    parameters,
    pass_bytes,
    pass_table,
)

QWEN = "qwen3.6-35b-a3b"


def test_the_published_model_is_the_one_that_transformers_builds() -> None:
    text = resources.files("trifolium.checkpoint").joinpath("geometries", f"{QWEN}.json").read_text()
    values: dict[str, Any] = json.loads(text)
    with torch.device("meta"):
        model = transformers.Qwen3_5MoeForCausalLM(transformers.Qwen3_5MoeTextConfig(**values))
    config = geometry(QWEN)
    shapes = expected_shapes(config)
    assert parameters(shapes) == sum(p.numel() for p in model.parameters()) == 34_660_610_688
    assert config.mixers == (*("delta_net",) * 3, "attention") * 10
    assert 2.9e9 < active_parameters(config, shapes) < 3.0e9
    assert config.rope.rotary_dim == 64


def test_clover_adds_four_tensors_to_each_delta_net_layer() -> None:
    clover = geometry("clover-35b-a3b-preview")
    added = parameters(expected_shapes(clover)) - parameters(expected_shapes(geometry(QWEN)))
    assert added == 30 * (8192 * 3 + 3 * 32)
    assert clover.family == "clover_moe"


def test_names() -> None:
    assert geometries() == ("clover-35b-a3b-preview", QWEN)
    assert nearest_geometries("qwen3.6-35b") == [QWEN]
    assert nearest_geometries("zzz") == list(geometries())
    with pytest.raises(NotFoundError, match=f"nearest: {QWEN}"):
        geometry("qwen36-35b-a3b")


def test_active_parameters_by_hand() -> None:
    config = tiny_hybrid("qwen3_5_moe_text")
    shapes = expected_shapes(config)
    idle = 4 * (7 - 3) * 3 * 20 * 48
    assert active_parameters(config, shapes) == parameters(shapes) - idle - (97 - 1) * 48


@pytest.mark.parametrize("tied", [True, False])
def test_dense_models_read_all_but_the_embeddings_of_other_tokens(tied: bool) -> None:
    config = tiny_config("llama", tie_embeddings=tied)
    shapes = expected_shapes(config)
    for rows in (1, 5, 97, 500):
        unread = 0 if tied else max(0, 97 - rows) * 48
        assert pass_bytes(config, shapes, rows, "bfloat16") == 2 * (parameters(shapes) - unread)
    assert [entry["coreset"] for entry in pass_table(config, shapes)] == [None] * 5


def test_distinct_experts_are_those_that_random_routing_reads() -> None:
    experts = ExpertsConfig(count=19, top_k=3, size=1)
    draw = random.Random(0)
    for rows in (1, 4, 11):
        counts = [len({e for _ in range(rows) for e in draw.sample(range(19), 3)}) for _ in range(4000)]
        assert distinct_experts(experts, rows) == pytest.approx(sum(counts) / len(counts), rel=0.01)
    assert distinct_experts(experts, 1) == pytest.approx(3)
    assert distinct_experts(experts, 11, 8) == 8
    assert distinct_experts(experts, 1, 8) == pytest.approx(3)


def test_the_table_of_the_published_model() -> None:
    config = geometry(QWEN)
    shapes = expected_shapes(config)
    table = {(entry["coreset"], entry["rows"]): entry for entry in pass_table(config, shapes)}
    assert len(table) == 5 * 5
    expert = 3 * 512 * 2048
    apart = table[None, 32]["bfloat16"] - table[32, 32]["bfloat16"]
    assert apart == pytest.approx(2 * 40 * expert * (256 * (1 - (1 - 8 / 256) ** 32) - 32), rel=1e-6)
    assert table[64, 128]["distinct_experts"] == 64
    for coreset in (None, 16, 32, 64, 128):
        reads = [table[coreset, rows]["bfloat16"] for rows in (1, 8, 32, 64, 128)]
        assert reads == sorted(reads)
        assert all(table[coreset, rows]["int8"] < 0.52 * table[coreset, rows]["bfloat16"] for rows in (1, 128))


def test_memory() -> None:
    shapes = {"a.weight": (5, 7), "b.weight": (11,), "layers.0.ffn.down": (3, 5, 7), "layers.0.mixer.conv": (13, 4)}
    count = sum(prod(shape) for shape in shapes.values())
    assert parameters(shapes) == count
    assert memory_bytes(shapes, "float32") == 4 * count
    assert memory_bytes(shapes, "bfloat16") == 2 * count
    # Scales of 5 and of 3 x 5 rows; the vector and the convolution stay float32.
    assert memory_bytes(shapes, "int8") == 35 + 4 * 5 + 4 * 11 + 105 + 4 * 15 + 4 * 52
