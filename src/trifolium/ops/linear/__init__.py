"""Linear products: reference and kernels."""

from .kernels import FloatLinear, Int8Linear, LinearKernel

__all__ = ["FloatLinear", "Int8Linear", "LinearKernel"]
