"""Linear products: reference and kernels."""

from .kernels import FloatLinear, Int8Linear, LinearKernel, PackedLinear, linear_kernel, pack_weight

__all__ = ["FloatLinear", "Int8Linear", "LinearKernel", "PackedLinear", "linear_kernel", "pack_weight"]
