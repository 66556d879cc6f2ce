"""The name tables: what each of our tensors is made of in a HF checkpoint and in a GGUF file.

One table per family, read in both directions. A row says which of our tensors it makes, and the ordered list of
their tensors that are stacked on dimension 0 to make it. Their shapes are written in the letters of `config.py`
(V, D, F, H, K, d), so that every expectation is derived from the ModelConfig and from nowhere else.

Our layout: a linear layer is [out, in]; q|k|v and gate|up are fused; rotary pairs are (i, i + d/2), as in HF.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from ..config import ModelConfig
from ..errors import TensorMismatchError, UnsupportedModelError

Naming = Literal["hf", "gguf"]
Shape = tuple[int, ...]


class Part(NamedTuple):
    """One of their tensors: its two names ({i} is the layer), its shape in letters, and whose heads its rows are."""

    hf: str
    gguf: str
    shape: str
    heads: Literal["H", "K"] | None = None  # rotary rows, which llama GGUF files store in another order


class Row(NamedTuple):
    """One of our tensors, the parts it is stacked from, and the ModelConfig flag that it depends on."""

    ours: str
    parts: tuple[Part, ...]
    when: Literal["untied", "qkv_bias", "out_bias", "mlp_bias", "qk_norm"] | None = None


_L = "model.layers.{i}."
_B = "blk.{i}."

_TRUNK = (
    Row("embed.weight", (Part("model.embed_tokens.weight", "token_embd.weight", "V D"),)),
    Row("layers.{i}.mixer_norm.weight", (Part(_L + "input_layernorm.weight", _B + "attn_norm.weight", "D"),)),
    Row(
        "layers.{i}.mixer.qkv.weight",
        (
            Part(_L + "self_attn.q_proj.weight", _B + "attn_q.weight", "Hd D", "H"),
            Part(_L + "self_attn.k_proj.weight", _B + "attn_k.weight", "Kd D", "K"),
            Part(_L + "self_attn.v_proj.weight", _B + "attn_v.weight", "Kd D"),
        ),
    ),
    Row("layers.{i}.mixer.out.weight", (Part(_L + "self_attn.o_proj.weight", _B + "attn_output.weight", "D Hd"),)),
    Row("layers.{i}.ffn_norm.weight", (Part(_L + "post_attention_layernorm.weight", _B + "ffn_norm.weight", "D"),)),
    Row(
        "layers.{i}.ffn.gate_up.weight",
        (
            Part(_L + "mlp.gate_proj.weight", _B + "ffn_gate.weight", "F D"),
            Part(_L + "mlp.up_proj.weight", _B + "ffn_up.weight", "F D"),
        ),
    ),
    Row("layers.{i}.ffn.down.weight", (Part(_L + "mlp.down_proj.weight", _B + "ffn_down.weight", "D F"),)),
    Row("norm.weight", (Part("model.norm.weight", "output_norm.weight", "D"),)),
    Row("head.weight", (Part("lm_head.weight", "output.weight", "V D"),), "untied"),
)
_QKV_BIAS = Row(
    "layers.{i}.mixer.qkv.bias",
    (
        Part(_L + "self_attn.q_proj.bias", _B + "attn_q.bias", "Hd", "H"),
        Part(_L + "self_attn.k_proj.bias", _B + "attn_k.bias", "Kd", "K"),
        Part(_L + "self_attn.v_proj.bias", _B + "attn_v.bias", "Kd"),
    ),
    "qkv_bias",
)
_OUT_BIAS = Row(
    "layers.{i}.mixer.out.bias", (Part(_L + "self_attn.o_proj.bias", _B + "attn_output.bias", "D"),), "out_bias"
)
_MLP_BIASES = (
    Row(
        "layers.{i}.ffn.gate_up.bias",
        (
            Part(_L + "mlp.gate_proj.bias", _B + "ffn_gate.bias", "F"),
            Part(_L + "mlp.up_proj.bias", _B + "ffn_up.bias", "F"),
        ),
        "mlp_bias",
    ),
    Row("layers.{i}.ffn.down.bias", (Part(_L + "mlp.down_proj.bias", _B + "ffn_down.bias", "D"),), "mlp_bias"),
)
_QK_NORMS = (
    Row(
        "layers.{i}.mixer.q_norm.weight",
        (Part(_L + "self_attn.q_norm.weight", _B + "attn_q_norm.weight", "d"),),
        "qk_norm",
    ),
    Row(
        "layers.{i}.mixer.k_norm.weight",
        (Part(_L + "self_attn.k_norm.weight", _B + "attn_k_norm.weight", "d"),),
        "qk_norm",
    ),
)

TABLES: Mapping[str, tuple[Row, ...]] = {
    "llama": (*_TRUNK, _QKV_BIAS, _OUT_BIAS, *_MLP_BIASES),
    "qwen2": (*_TRUNK, _QKV_BIAS),
    "qwen3": (*_TRUNK, _QKV_BIAS, _OUT_BIAS, *_QK_NORMS),
}


@dataclass(frozen=True)
class Source:
    """One of their tensors, with names and sizes filled in. `heads` is 0 where the rows are not rotary."""

    name: str
    shape: Shape
    heads: int


@dataclass(frozen=True)
class Target:
    """One of our tensors and the sources that are stacked to make it."""

    name: str
    shape: Shape
    sources: tuple[Source, ...]


def targets(config: ModelConfig, naming: Naming) -> Iterator[Target]:
    """All tensors of a model in our names, in the order of the table and of the layers.

    Raises UnsupportedModelError when `config` wants a tensor that the family's table doesn't have.
    """
    flags = _flags(config)
    table = TABLES[config.family]
    known = {row.when for row in table}
    if missing := [flag for flag, wanted in flags.items() if wanted and flag not in known]:
        raise UnsupportedModelError(f"a {config.family} model has no {', '.join(missing)}; choose another family")
    rows = [row for row in table if row.when is None or flags[row.when]]
    sizes = _sizes(config)
    yield from (_target(row, naming, sizes, 0) for row in rows if "{i}" not in row.ours)
    for layer in range(config.num_layers):
        yield from (_target(row, naming, sizes, layer) for row in rows if "{i}" in row.ours)


def expected_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor that a model of this config has, in our names."""
    return {target.name: target.shape for target in targets(config, "hf")}


def split(target: Target, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The table in reverse: (their name, their part) of one of our tensors. The parts are views."""
    start = 0
    for source in target.sources:
        yield source.name, tensor.narrow(0, start, source.shape[0])
        start += source.shape[0]


def join(target: Target, dtype: torch.dtype, read: Callable[[Source, torch.Tensor], None]) -> tuple[str, torch.Tensor]:
    """(our name, our tensor): `read(source, out)` fills each part in place, so nothing is held twice."""
    out = torch.empty(target.shape, dtype=dtype)
    start = 0
    for source in target.sources:
        read(source, out.narrow(0, start, source.shape[0]))
        start += source.shape[0]
    return target.name, out


def check_shapes(
    wanted: Iterable[tuple[str, Shape]], found: Mapping[str, Shape], where: str, *, ignored: Iterable[str] = ()
) -> None:
    """Raises TensorMismatchError that lists every missing, unexpected and mis-shaped tensor of `found`."""
    expected = dict(wanted)
    extra = set(found) - set(expected) - set(ignored)
    wrong = [name for name in expected if name in found and found[name] != expected[name]]
    faults = [f"missing: {name} {list(shape)}" for name, shape in expected.items() if name not in found]
    faults += [f"unexpected: {name} {list(found[name])}" for name in sorted(extra)]
    faults += [f"mis-shaped: {name} is {list(found[name])}, expected {list(expected[name])}" for name in wrong]
    if faults:
        raise TensorMismatchError(
            f"{where}: {len(faults)} tensors do not fit the model's config:\n  " + "\n  ".join(faults)
        )


def _target(row: Row, naming: Naming, sizes: Mapping[str, int], layer: int) -> Target:
    sources = tuple(
        Source(
            name=(part.hf if naming == "hf" else part.gguf).replace("{i}", str(layer)),
            shape=tuple(sizes[letter] for letter in part.shape.split()),
            heads=sizes[part.heads] if part.heads else 0,
        )
        for part in row.parts
    )
    rows = sum(source.shape[0] for source in sources)
    return Target(row.ours.replace("{i}", str(layer)), (rows, *sources[0].shape[1:]), sources)


def _flags(config: ModelConfig) -> dict[str, bool]:
    return {
        "untied": not config.tie_embeddings,
        "qkv_bias": config.qkv_bias,
        "out_bias": config.out_bias,
        "mlp_bias": config.mlp_bias,
        "qk_norm": config.qk_norm,
    }


def _sizes(config: ModelConfig) -> dict[str, int]:
    return {
        "V": config.vocab_size,
        "D": config.hidden_size,
        "F": config.intermediate_size,
        "H": config.num_heads,
        "K": config.num_kv_heads,
        "d": config.head_dim,
        "Hd": config.q_size,
        "Kd": config.kv_size,
    }
