"""A second implementation of the model, written for tests: float64, one row, one head and one cell at a time.

It shares nothing with the package but the weights. Rotary positions are complex rotations, without scaling.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from trifolium.model import MASK, Transformer

Cells = list[list[list[tuple[Tensor, Tensor]]]]
"""Rotated key and value by layer, position and key head."""


class Plain:
    """Commits tokens one by one, and previews blocks over what is committed."""

    def __init__(self, model: Transformer, *, adapter: bool = True) -> None:
        self.config = model.config
        state = {name: p.detach().double() for name, p in model.named_parameters()}
        if model.config.tie_embeddings:
            state["head.weight"] = state["embed.weight"]
        self.weights = state
        assert model.adapter is None or model.adapter.config.vocab_size == self.config.vocab_size
        adapter_config = model.adapter.config if model.adapter is not None and adapter else None
        self.scale = adapter_config.alpha / adapter_config.rank if adapter_config else 0.0
        self.max_block = adapter_config.max_block if adapter_config else 0
        self.cells: Cells = [[] for _ in range(self.config.num_layers)]

    def commit(self, token: int) -> Tensor:
        """Append one token; its final hidden vector [D] in float64."""
        (y,) = self._block([self.weights["embed.weight"][token]], len(self.cells[0]), self.cells, preview=False)
        return y

    def preview(self, canvas: Sequence[int]) -> Tensor:
        """Final hidden vectors [m, D] of a block after all that is committed. Changes nothing."""
        inputs = []
        for j, token in enumerate(canvas):
            x = self.weights["adapter.mask_embedding"] if token == MASK else self.weights["embed.weight"][token]
            inputs.append(x + self.weights["adapter.block_position"][min(j, self.max_block - 1)])
        cells = [list(layer) for layer in self.cells]
        return torch.stack(self._block(inputs, len(self.cells[0]), cells, preview=True))

    def _block(self, inputs: list[Tensor], start: int, cells: Cells, *, preview: bool) -> list[Tensor]:
        """Rows that all see each other and every cell of `cells`, to which they are added."""
        xs = inputs
        for i in range(self.config.num_layers):
            queries = []
            for j, x in enumerate(xs):
                query, cell = self._project(i, self._norm(x, f"layers.{i}.mixer_norm"), start + j, preview)
                queries.append(query)
                cells[i].append(cell)
            xs = [x + self._attend(i, q, cells[i], preview) for x, q in zip(xs, queries, strict=True)]
            xs = [x + self._feed_forward(i, self._norm(x, f"layers.{i}.ffn_norm"), preview) for x in xs]
        return [self._norm(x, "norm") for x in xs]

    def _project(
        self, i: int, x: Tensor, position: int, preview: bool
    ) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        c = self.config
        parts = list(self._linear(i, "mixer.qkv", "qkv", x, preview).split(c.head_dim))
        queries, keys = parts[: c.num_heads], parts[c.num_heads : c.num_heads + c.num_kv_heads]
        values = parts[c.num_heads + c.num_kv_heads :]
        if c.qk_norm:
            queries = [self._norm(q, f"layers.{i}.mixer.q_norm") for q in queries]
            keys = [self._norm(k, f"layers.{i}.mixer.k_norm") for k in keys]
        queries = [self._rotate(q, position) for q in queries]
        keys = [self._rotate(k, position) for k in keys]
        return queries, list(zip(keys, values, strict=True))

    def _attend(self, i: int, queries: list[Tensor], cells: list[list[tuple[Tensor, Tensor]]], preview: bool) -> Tensor:
        heads = []
        group = self.config.num_heads // self.config.num_kv_heads
        for h, q in enumerate(queries):
            scores = [math.exp(float(q @ cell[h // group][0]) / math.sqrt(len(q))) for cell in cells]
            total = sum(scores)
            heads.append(sum((s / total * cell[h // group][1] for s, cell in zip(scores, cells, strict=True)), 0 * q))
        return self._linear(i, "mixer.out", "out", torch.cat(heads), preview)

    def _feed_forward(self, i: int, x: Tensor, preview: bool) -> Tensor:
        both = self._linear(i, "ffn.gate_up", "gate_up", x, preview)
        gate, up = both[: len(both) // 2], both[len(both) // 2 :]
        return self._linear(i, "ffn.down", "down", gate / (1 + (-gate).exp()) * up, preview)

    def _linear(self, i: int, name: str, delta: str, x: Tensor, preview: bool) -> Tensor:
        y = self.weights[f"layers.{i}.{name}.weight"] @ x
        bias = self.weights.get(f"layers.{i}.{name}.bias")
        y = y if bias is None else y + bias
        if preview:
            down = self.weights[f"adapter.layers.{i}.{delta}.down"]
            y = y + self.scale * (self.weights[f"adapter.layers.{i}.{delta}.up"] @ (down @ x))
        return y

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean() + self.config.rms_norm_eps).sqrt() * self.weights[f"{name}.weight"]

    def _rotate(self, x: Tensor, position: int) -> Tensor:
        half = len(x) // 2
        turned = [
            complex(x[i], x[i + half]) * cmath.exp(1j * position * self.config.rope.theta ** (-i / half))
            for i in range(half)
        ]
        return torch.tensor([z.real for z in turned] + [z.imag for z in turned], dtype=torch.float64)
