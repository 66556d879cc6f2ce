"""Mixtures of experts: routing, coresets, and experts over grouped rows."""

from .grouped import ExpertsKernel, FloatExperts, Int8Experts, experts_train
from .routing import Routing, coresets, route

__all__ = ["ExpertsKernel", "FloatExperts", "Int8Experts", "Routing", "coresets", "experts_train", "route"]
