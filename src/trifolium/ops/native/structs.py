"""The structs of products.h and dense.h, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p


class Product(ctypes.Structure):
    """A packed weight."""

    _fields_ = (
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("format", c_int32),
    )


class Delta(ctypes.Structure):
    """A low-rank delta on preview rows; none while `down.packed` is null."""

    _fields_ = (("down", Product), ("up", Product), ("scale", c_float))


class Layer(ctypes.Structure):
    """One layer of a dense transformer."""

    _fields_ = (
        *((name, c_void_p) for name in ("mixer_norm", "q_norm", "k_norm", "ffn_norm")),
        *((name, Product) for name in ("qkv", "out", "gate_up", "down")),
        *((f"{name}_delta", Delta) for name in ("qkv", "out", "gate_up", "down")),
    )


class Model(ctypes.Structure):
    """A dense transformer between its embedding and its head."""

    _fields_ = (
        *((name, c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "rotary", "ffn")),
        ("eps", c_float),
        ("layer", ctypes.POINTER(Layer)),
        ("final_norm", c_void_p),
    )


class Cells(ctypes.Structure):
    """One request's keys and values, [layers, 2, K, capacity, d]."""

    _fields_ = (("at", c_void_p), ("capacity", c_int64), ("length", c_int64))


class Pass(ctypes.Structure):
    """The rows of one pass."""

    _fields_ = (
        ("rows", c_int64),
        ("commit", c_int64),
        *((name, c_void_p) for name in ("request", "tail_start", "tails", "cos", "sin")),
        ("cells", ctypes.POINTER(Cells)),
        *((name, c_void_p) for name in ("x", "scratch", "workspace")),
    )
