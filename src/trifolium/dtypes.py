"""How products are computed: the dtypes there are, and which one `auto` takes on which machine.

`auto` looks at what the CPU can do and what the checkpoint is, never at a timing, which would make texts depend on
noise. The same machine gives the same dtype every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from .errors import ConfigError

if TYPE_CHECKING:
    import torch

    from .config import ModelConfig

DType = Literal["float32", "bfloat16", "int8", "int4"]
DTYPES: tuple[DType, ...] = get_args(DType)
DTypeName = Literal["auto"] | DType


@dataclass(frozen=True)
class Machine:
    """What decides: `dot8`: int8 products summed in 32 bits (VNNI, AMX); `int8`: oneDNN has int8 products at all;
    `native`: our C++ kernels are compiled; `cuda`: the model runs on a GPU."""

    dot8: bool = False
    avx2: bool = False
    int8: bool = False
    native: bool = False
    cuda: bool = False

    @classmethod
    def here(cls) -> Machine:
        """This machine, for models on its CPU. Compiles the native kernels if that hasn't happened yet."""
        import torch

        from .ops.linear.kernels import has_int8_dot_products
        from .ops.native import native

        return cls(
            dot8=has_int8_dot_products(),
            avx2=torch.backends.cpu.get_cpu_capability().startswith("AVX"),
            int8=hasattr(torch.ops.onednn, "qlinear_prepack"),
            native=native().library is not None,
        )


@dataclass(frozen=True)
class Choice:
    """A dtype, and in words why it is the one."""

    dtype: DType
    why: str


def choose(config: ModelConfig, machine: Machine, four_bit: bool = False) -> Choice:
    """What `auto` stands for: the first line that holds (measured in docs/numbers.md, docs/log.md and docs/hybrids.md).

    `four_bit`: the checkpoint stores its layers in four bits that int4 keeps exactly.

    | machine | model | dtype |
    | --- | --- | --- |
    | GPU | any | bfloat16 (untested) |
    | native kernels | attention and dense layers, stored in Q4_1 | int4: the very weights, and the fewest bytes |
    | VNNI or AMX | any | int8: a 64-row pass costs little more than one row's |
    | AVX2 and native kernels | attention and dense layers only | int8: half of float32's time or less |
    | native kernels | delta-net layers or experts | bfloat16: exact there, and half of float32's bytes |
    | anything else | any | float32: int8 saves less time than its `verified` loses, torch's bfloat16 is scalar |
    """
    hybrid = "delta_net" in config.mixers or "experts" in config.feed_forwards
    if machine.cuda:
        return Choice("bfloat16", "the model runs on a GPU")
    if machine.native and four_bit and not hybrid:
        return Choice("int4", "the checkpoint's own four bits are kept, and the native kernels are compiled")
    if machine.dot8 and machine.int8:
        return Choice("int8", "the CPU sums int8 products in 32 bits")
    if machine.avx2 and machine.native and machine.int8 and not hybrid:
        return Choice("int8", "the CPU has AVX2, and the native kernels are compiled")
    if machine.native and hybrid:
        return Choice("bfloat16", "a hybrid's native kernels are exact in it, and read half of float32's bytes")
    return Choice("float32", "the CPU has no fast int8 products")


def check(name: str) -> None:
    """Raises ConfigError unless `name` is `auto` or one of DTYPES."""
    if name != "auto" and name not in DTYPES:
        raise ConfigError(f"unknown dtype {name!r}: choose auto, {', '.join(DTYPES)}")


def resolve(name: str, config: ModelConfig, four_bit: bool = False) -> Choice:
    """The dtype called `name` for a model on this machine's CPU. Raises ConfigError for an unknown name."""
    check(name)
    for dtype in DTYPES:
        if dtype == name:
            return Choice(dtype, "asked for")
    return choose(config, Machine.here(), four_bit)


def as_torch(name: DType) -> torch.dtype:
    """The torch dtype of that name."""
    import torch

    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype
