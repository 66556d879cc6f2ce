"""Mixtures of experts: routing, coresets, and experts over grouped rows."""

from .grouped import ExpertsKernel, FloatExperts, Int8Experts, NativeExperts, experts_kernel, experts_train
from .routing import Routing, coresets, route

__all__ = [
    "ExpertsKernel",
    "FloatExperts",
    "Int8Experts",
    "NativeExperts",
    "Routing",
    "coresets",
    "experts_kernel",
    "experts_train",
    "route",
]
