"""The name tables: what each of our tensors is made of in a HF checkpoint and in a GGUF file.

One table per family, read in both directions (names.py). A row says which of our tensors it makes, and the ordered
list of their tensors that fill it one after another. Shapes are written in letters, so that every expectation is
derived from the ModelConfig and from nowhere else:

    V D F      vocabulary, hidden size, feed-forward size of dense layers
    H K d      query heads, key/value heads, head size; Qd Kd Hd: rows of q (with its gate, if any) and k, width of out
    v n        value heads of the delta net, and how many of them a key head serves
    dk dv vd   size of its key heads, of its value heads, of all value heads together
    C W        channels of its convolution (q | k | v), and taps
    E M S      experts, size of one, size of the shared one

Our layout: a linear layer is [out, in]; q|k|v, gate|up and the delta net's q|k|v|z|b|a are fused; rotary pairs are
(i, i + d/2), as in HF. Experts are stacked: gate_up [E, 2M, D], down [E, D, M].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Flag = Literal["untied", "qkv_bias", "out_bias", "mlp_bias", "qk_norm", "shared"]
Kind = Literal["attention", "delta_net", "dense", "experts"]


class Part(NamedTuple):
    """One of their tensors: its two names ({i} is the layer, {e} the expert), its shape in letters, its rows' order.

    `heads`: whose heads its rows are, for rotary rows, which llama GGUF files store in another order.
    `pieces`: the rows come key head by key head, each with pieces of these sizes; ours come piece by piece.
    """

    hf: str
    gguf: str
    shape: str
    heads: Literal["", "H", "K"] = ""
    pieces: str = ""


class Row(NamedTuple):
    """One of our tensors, the parts that fill it in memory order, and what it depends on.

    `when`: a flag of the config. `kind`: only in layers with this mixer or feed-forward. `shape`: ours, where it is not
    simply the parts stacked on dimension 0. `other`: another published form, read where a file has it, never written.
    """

    ours: str
    parts: tuple[Part, ...]
    when: Flag | None = None
    kind: Kind | None = None
    shape: str = ""
    other: tuple[Part, ...] = ()


PREVIEW = "adapter."
"""Our names of tensors that only previews use, and that a model without them doesn't have, start with this."""

WRAPPED = "model.language_model."
"""What stands for "model." in files of vision models, whose text model is one part of them."""

SKIPPED = ("mtp.", "visual.", "model.visual.")
"""Parts of hybrids' files that no text is made with: multi-token prediction heads and vision encoders."""

_L = "model.layers.{i}."
_B = "blk.{i}."

_TRUNK = (
    Row("embed.weight", (Part("model.embed_tokens.weight", "token_embd.weight", "V D"),)),
    Row("layers.{i}.mixer_norm.weight", (Part(_L + "input_layernorm.weight", _B + "attn_norm.weight", "D"),)),
    Row(
        "layers.{i}.mixer.qkv.weight",
        (
            Part(_L + "self_attn.q_proj.weight", _B + "attn_q.weight", "Qd D", "H"),
            Part(_L + "self_attn.k_proj.weight", _B + "attn_k.weight", "Kd D", "K"),
            Part(_L + "self_attn.v_proj.weight", _B + "attn_v.weight", "Kd D"),
        ),
        kind="attention",
    ),
    Row(
        "layers.{i}.mixer.out.weight",
        (Part(_L + "self_attn.o_proj.weight", _B + "attn_output.weight", "D Hd"),),
        kind="attention",
    ),
    Row("layers.{i}.ffn_norm.weight", (Part(_L + "post_attention_layernorm.weight", _B + "ffn_norm.weight", "D"),)),
    Row("norm.weight", (Part("model.norm.weight", "output_norm.weight", "D"),)),
    Row("head.weight", (Part("lm_head.weight", "output.weight", "V D"),), "untied"),
)
_DENSE = (
    Row(
        "layers.{i}.ffn.gate_up.weight",
        (
            Part(_L + "mlp.gate_proj.weight", _B + "ffn_gate.weight", "F D"),
            Part(_L + "mlp.up_proj.weight", _B + "ffn_up.weight", "F D"),
        ),
        kind="dense",
    ),
    Row(
        "layers.{i}.ffn.down.weight",
        (Part(_L + "mlp.down_proj.weight", _B + "ffn_down.weight", "D F"),),
        kind="dense",
    ),
)
_QKV_BIAS = Row(
    "layers.{i}.mixer.qkv.bias",
    (
        Part(_L + "self_attn.q_proj.bias", _B + "attn_q.bias", "Qd", "H"),
        Part(_L + "self_attn.k_proj.bias", _B + "attn_k.bias", "Kd", "K"),
        Part(_L + "self_attn.v_proj.bias", _B + "attn_v.bias", "Kd"),
    ),
    "qkv_bias",
    "attention",
)
_OUT_BIAS = Row(
    "layers.{i}.mixer.out.bias",
    (Part(_L + "self_attn.o_proj.bias", _B + "attn_output.bias", "D"),),
    "out_bias",
    "attention",
)
_MLP_BIASES = (
    Row(
        "layers.{i}.ffn.gate_up.bias",
        (
            Part(_L + "mlp.gate_proj.bias", _B + "ffn_gate.bias", "F"),
            Part(_L + "mlp.up_proj.bias", _B + "ffn_up.bias", "F"),
        ),
        "mlp_bias",
        "dense",
    ),
    Row(
        "layers.{i}.ffn.down.bias",
        (Part(_L + "mlp.down_proj.bias", _B + "ffn_down.bias", "D"),),
        "mlp_bias",
        "dense",
    ),
)
_QK_NORMS = (
    Row(
        "layers.{i}.mixer.q_norm.weight",
        (Part(_L + "self_attn.q_norm.weight", _B + "attn_q_norm.weight", "d"),),
        "qk_norm",
        "attention",
    ),
    Row(
        "layers.{i}.mixer.k_norm.weight",
        (Part(_L + "self_attn.k_norm.weight", _B + "attn_k_norm.weight", "d"),),
        "qk_norm",
        "attention",
    ),
)


def _delta(ours: str, *parts: Part, shape: str = "") -> Row:
    return Row("layers.{i}.mixer." + ours, parts, kind="delta_net", shape=shape)


# GGUF files of the hybrids are not read, so their parts have no GGUF names.
DELTA_NET = _D = _L + "linear_attn."
_DELTA_NET = (
    _delta("conv", Part(_D + "conv1d.weight", "", "C 1 W"), shape="C W"),
    _delta("decay_log", Part(_D + "A_log", "", "v")),
    _delta("decay_bias", Part(_D + "dt_bias", "", "v")),
    _delta("gate_norm.weight", Part(_D + "norm.weight", "", "dv")),
    _delta("out.weight", Part(_D + "out_proj.weight", "", "D vd")),
)
_PROJ = _delta(
    "proj.weight",
    Part(_D + "in_proj_qkv.weight", "", "C D"),
    Part(_D + "in_proj_z.weight", "", "vd D"),
    Part(_D + "in_proj_b.weight", "", "v D"),
    Part(_D + "in_proj_a.weight", "", "v D"),
)
_PROJ_BY_HEADS = _delta(
    "proj.weight",
    Part(_D + "in_proj_qkvz.weight", "", "C+vd D", pieces="dk dk n*dv n*dv"),
    Part(_D + "in_proj_ba.weight", "", "2v D", pieces="n n"),
)

_X = _L + "mlp.experts."
_GATE_UP = (Part(_X + "gate_up_proj", "", "E 2M D"),)
_DOWN = (Part(_X + "down_proj", "", "E D M"),)
_GATE_UP_EACH = (Part(_X + "{e}.gate_proj.weight", "", "M D"), Part(_X + "{e}.up_proj.weight", "", "M D"))
_DOWN_EACH = (Part(_X + "{e}.down_proj.weight", "", "D M"),)


def _moe(ours: str, *parts: Part, shared: bool = False) -> Row:
    return Row("layers.{i}.ffn." + ours, parts, "shared" if shared else None, "experts")


_MOE = (
    _moe("router.weight", Part(_L + "mlp.gate.weight", "", "E D")),
    _moe(
        "shared.gate_up.weight",
        Part(_L + "mlp.shared_expert.gate_proj.weight", "", "S D"),
        Part(_L + "mlp.shared_expert.up_proj.weight", "", "S D"),
        shared=True,
    ),
    _moe("shared.down.weight", Part(_L + "mlp.shared_expert.down_proj.weight", "", "D S"), shared=True),
    _moe("shared_gate.weight", Part(_L + "mlp.shared_expert_gate.weight", "", "1 D"), shared=True),
)
# Published and saved stacked by the Qwen3.5 family, one by one by Qwen3-Next; both forms exist of both.
_STACKED = (
    Row("layers.{i}.ffn.gate_up", _GATE_UP, kind="experts", shape="E 2M D", other=_GATE_UP_EACH),
    Row("layers.{i}.ffn.down", _DOWN, kind="experts", shape="E D M", other=_DOWN_EACH),
)
_ONE_BY_ONE = (
    Row("layers.{i}.ffn.gate_up", _GATE_UP_EACH, kind="experts", shape="E 2M D", other=_GATE_UP),
    Row("layers.{i}.ffn.down", _DOWN_EACH, kind="experts", shape="E D M", other=_DOWN),
)


def _preview(ours: str, theirs: str, shape: str) -> Row:
    parts = (Part(_D + theirs, "", shape),)
    return Row(PREVIEW + "layers.{i}.preview." + ours, parts, kind="delta_net")


_PREVIEWS = (
    _preview("right", "conv_right_weight", "C W-1"),
    _preview("logit_scale", "bd_softmax_logit_scale", "v"),
    _preview("history_bias", "bd_softmax_history_bias", "v"),
    _preview("history_c", "bd_softmax_history_c", "v"),
)
PREVIEW_SUFFIXES = tuple(row.parts[0].hf.rsplit(".", 1)[1] for row in _PREVIEWS)
"""The last parts of the names under which clover_moe publishes its preview tensors."""

_GATED = (*_TRUNK, _QKV_BIAS, _OUT_BIAS, *_QK_NORMS)
_QWEN3_5_MOE = (*_GATED, _PROJ, *_DELTA_NET, *_MOE, *_STACKED)

TABLES: Mapping[str, tuple[Row, ...]] = {
    "llama": (*_TRUNK, *_DENSE, _QKV_BIAS, _OUT_BIAS, *_MLP_BIASES),
    "qwen2": (*_TRUNK, *_DENSE, _QKV_BIAS),
    "qwen3": (*_TRUNK, *_DENSE, _QKV_BIAS, _OUT_BIAS, *_QK_NORMS),
    "qwen3_next": (*_GATED, _PROJ_BY_HEADS, *_DELTA_NET, *_DENSE, *_MOE, *_ONE_BY_ONE),
    "qwen3_5_text": (*_GATED, _PROJ, *_DELTA_NET, *_DENSE),
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "clover_moe": (*_QWEN3_5_MOE, *_PREVIEWS),
}
HYBRIDS = frozenset(family for family, table in TABLES.items() if any(row.kind == "delta_net" for row in table))
"""Families with delta-net layers, whose attention may be gated."""
