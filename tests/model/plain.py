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
        self.deltas = [PlainDelta(self, i) if m == "delta_net" else None for i, m in enumerate(self.config.mixers)]
        self.length = 0

    def commit(self, token: int) -> Tensor:
        """Append one token; its final hidden vector [D] in float64."""
        (y,) = self._block([self.weights["embed.weight"][token]], self.length, self.cells, preview=False)
        self.length += 1
        return y

    def preview(self, canvas: Sequence[int]) -> Tensor:
        """Final hidden vectors [m, D] of a block after all that is committed. Changes nothing."""
        inputs = []
        for j, token in enumerate(canvas):
            x = self.weights["adapter.mask_embedding"] if token == MASK else self.weights["embed.weight"][token]
            inputs.append(x + self.weights["adapter.block_position"][min(j, self.max_block - 1)])
        cells = [list(layer) for layer in self.cells]
        return torch.stack(self._block(inputs, self.length, cells, preview=True))

    def _block(self, inputs: list[Tensor], start: int, cells: Cells, *, preview: bool) -> list[Tensor]:
        """Rows that all see each other and every cell of `cells`, to which they are added."""
        xs = inputs
        for i in range(self.config.num_layers):
            hs = [self._norm(x, f"layers.{i}.mixer_norm") for x in xs]
            delta = self.deltas[i]
            if delta is not None:
                ys = delta.preview(hs) if preview else [delta.commit(h) for h in hs]
            else:
                projected = [self._project(i, h, start + j, preview) for j, h in enumerate(hs)]
                cells[i] += [cell for _, cell, _ in projected]
                ys = [self._attend(i, q, cells[i], gates, preview) for q, _, gates in projected]
            xs = [x + y for x, y in zip(xs, ys, strict=True)]
            xs = [x + self._feed_forward(i, self._norm(x, f"layers.{i}.ffn_norm"), preview) for x in xs]
        return [self._norm(x, "norm") for x in xs]

    def _project(
        self, i: int, x: Tensor, position: int, preview: bool
    ) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]], list[Tensor]]:
        c = self.config
        parts = list(self._linear(i, "mixer.qkv", "qkv", x, preview).split(c.head_dim))
        gates: list[Tensor] = []
        if c.output_gate:  # each query head is followed by its gate
            both, rest = parts[: 2 * c.num_heads], parts[2 * c.num_heads :]
            parts, gates = both[::2] + rest, both[1::2]
        queries, keys = parts[: c.num_heads], parts[c.num_heads : c.num_heads + c.num_kv_heads]
        values = parts[c.num_heads + c.num_kv_heads :]
        if c.qk_norm:
            queries = [self._norm(q, f"layers.{i}.mixer.q_norm") for q in queries]
            keys = [self._norm(k, f"layers.{i}.mixer.k_norm") for k in keys]
        queries = [self._rotate(q, position) for q in queries]
        keys = [self._rotate(k, position) for k in keys]
        return queries, list(zip(keys, values, strict=True)), gates

    def _attend(
        self,
        i: int,
        queries: list[Tensor],
        cells: list[list[tuple[Tensor, Tensor]]],
        gates: list[Tensor],
        preview: bool,
    ) -> Tensor:
        heads = []
        group = self.config.num_heads // self.config.num_kv_heads
        for h, q in enumerate(queries):
            scores = [math.exp(float(q @ cell[h // group][0]) / math.sqrt(len(q))) for cell in cells]
            total = sum(scores)
            heads.append(sum((s / total * cell[h // group][1] for s, cell in zip(scores, cells, strict=True)), 0 * q))
        if gates:
            heads = [y / (1 + (-gate).exp()) for y, gate in zip(heads, gates, strict=True)]
        return self._linear(i, "mixer.out", "out", torch.cat(heads), preview)

    def _feed_forward(self, i: int, x: Tensor, preview: bool) -> Tensor:
        if self.config.feed_forwards[i] == "dense":
            return self._dense(i, "ffn", x, preview)
        sizes = self.config.experts
        assert sizes is not None
        logits = (self.weights[f"layers.{i}.ffn.router.weight"] @ x).tolist()
        shares = [math.exp(v) / sum(map(math.exp, logits)) for v in logits]
        chosen = sorted(range(sizes.count), key=lambda e: -shares[e])[: sizes.top_k]
        y = 0 * x
        for e in chosen:
            both = self.weights[f"layers.{i}.ffn.gate_up"][e] @ x
            hidden = silu(both[: sizes.size]) * both[sizes.size :]
            weight = shares[e] / (sum(shares[c] for c in chosen) if sizes.renormalise else 1.0)
            y = y + weight * (self.weights[f"layers.{i}.ffn.down"][e] @ hidden)
        gate = self.weights[f"layers.{i}.ffn.shared_gate.weight"][0] @ x
        return y + self._dense(i, "ffn.shared", x, preview) / (1 + math.exp(-float(gate)))

    def _dense(self, i: int, name: str, x: Tensor, preview: bool) -> Tensor:
        both = self._linear(i, f"{name}.gate_up", "gate_up", x, preview)
        hidden = silu(both[: len(both) // 2]) * both[len(both) // 2 :]
        return self._linear(i, f"{name}.down", "down", hidden, preview)

    def _linear(self, i: int, name: str, delta: str, x: Tensor, preview: bool) -> Tensor:
        y = self.weights[f"layers.{i}.{name}.weight"] @ x
        bias = self.weights.get(f"layers.{i}.{name}.bias")
        y = y if bias is None else y + bias
        if preview:
            down = self.weights[f"adapter.layers.{i}.{delta}.down"]
            y = y + self.scale * (self.weights[f"adapter.layers.{i}.{delta}.up"] @ (down @ x))
        return y

    def _norm(self, x: Tensor, name: str) -> Tensor:
        offset = 0 if name.endswith("gate_norm") else self.config.norm_offset
        return x / (x.square().mean() + self.config.rms_norm_eps).sqrt() * (offset + self.weights[f"{name}.weight"])

    def _rotate(self, x: Tensor, position: int) -> Tensor:
        half = (self.config.rope.rotary_dim or len(x)) // 2
        turned = [
            complex(x[i], x[i + half]) * cmath.exp(1j * position * self.config.rope.theta ** (-i / half))
            for i in range(half)
        ]
        rest = x[2 * half :].tolist()
        return torch.tensor([z.real for z in turned] + [z.imag for z in turned] + rest, dtype=torch.float64)


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


class PlainDelta:
    """One gated delta-net layer: the recurrence a token and a head at a time, previews a row and a head at a time."""

    def __init__(self, plain: Plain, layer: int) -> None:
        sizes = plain.config.delta_net
        assert sizes is not None
        self.plain, self.layer, self.sizes = plain, layer, sizes
        zeros = torch.zeros(sizes.key_dim, sizes.value_dim, dtype=torch.float64)
        self.states = [zeros.clone() for _ in range(sizes.value_heads)]
        self.ring = [torch.zeros(sizes.conv_size, dtype=torch.float64)] * (sizes.conv_width - 1)

    def weight(self, name: str) -> Tensor:
        return self.plain.weights[f"layers.{self.layer}.mixer.{name}"]

    def parts(self, x: Tensor, preview: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        s = self.sizes
        projected = self.plain._linear(self.layer, "mixer.proj", "qkv", x, preview)
        inputs, z, b, a = projected.split([s.conv_size, s.value_size, s.value_heads, s.value_heads])
        return inputs, z, b, a

    def heads(self, c: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """q, k, v of every value head."""
        s = self.sizes
        q, k, v = c.split([s.key_size, s.key_size, s.value_size])

        def unit(x: Tensor) -> Tensor:
            return x / (x.square().sum() + 1e-6).sqrt()

        out = []
        for h in range(s.value_heads):
            key = h // (s.value_heads // s.key_heads)
            keys, values = slice(key * s.key_dim, (key + 1) * s.key_dim), slice(h * s.value_dim, (h + 1) * s.value_dim)
            out.append((unit(q[keys]), unit(k[keys]), v[values]))
        return out

    def finish(self, heads: list[Tensor], z: Tensor, preview: bool) -> Tensor:
        name = f"layers.{self.layer}.mixer.gate_norm"
        normed = torch.cat([self.plain._norm(y, name) for y in heads])
        return self.plain._linear(self.layer, "mixer.out", "out", normed * silu(z), preview)

    def commit(self, x: Tensor) -> Tensor:
        inputs, z, b, a = self.parts(x, preview=False)
        window = [*self.ring, inputs]
        c = silu(sum((self.weight("conv")[:, j] * u for j, u in enumerate(window)), 0 * inputs))
        self.ring = window[1:]
        heads = []
        for h, (q, k, v) in enumerate(self.heads(c)):
            step = math.log1p(math.exp(float(a[h] + self.weight("decay_bias")[h])))
            state = math.exp(-math.exp(float(self.weight("decay_log")[h])) * step) * self.states[h]
            state = state + torch.outer(k, (v - k @ state) / (1 + math.exp(-float(b[h]))))
            self.states[h] = state
            heads.append(q @ state / math.sqrt(len(q)))
        return self.finish(heads, z, preview=False)

    def preview(self, xs: list[Tensor]) -> list[Tensor]:
        parts = [self.parts(x, preview=True) for x in xs]
        inputs, before = [p[0] for p in parts], self.sizes.conv_width - 1
        window = [*self.ring, *inputs]

        def extra(name: str) -> Tensor:
            return self.plain.weights[f"adapter.layers.{self.layer}.preview.{name}"]

        rows = []
        for t in range(len(xs)):
            c = sum((self.weight("conv")[:, j] * window[t + j] for j in range(before + 1)), 0 * inputs[0])
            for ahead in range(1, before + 1):
                if t + ahead < len(xs):
                    c = c + extra("right")[:, ahead - 1] * inputs[t + ahead]
            rows.append(self.heads(silu(c)))
        outs = []
        for i, (_, z, _, _) in enumerate(parts):
            heads = []
            for h in range(self.sizes.value_heads):
                q = rows[i][h][0]
                history = math.exp(float(extra("history_bias")[h] + extra("history_c")[h] * math.log(len(xs))))
                scores = [math.exp(float(extra("logit_scale")[h] * (q @ row[h][1]))) for row in rows]
                y = history * (q @ self.states[h]) / math.sqrt(len(q))
                y = y + sum((s * row[h][2] for s, row in zip(scores, rows, strict=True)), 0 * y)
                heads.append(y / (history + sum(scores)))
            outs.append(self.finish(heads, z, preview=True))
        return outs
