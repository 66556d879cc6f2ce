"""Which implementation of an operation runs on which device, and why.

Operations with a choice:

    delta_rule.chunked   (q, k, v, g, beta, state=None) -> (out [B, T, H, e], state [B, H, d, e])
    delta_rule.traced    the same -> Chunked, with the trace that `state_at` reads. Training needs it, and only torch
                         has it: fla's kernel keeps no updates

All arguments are those of `ops.delta_rule.chunked`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import NotFoundError
from .delta_rule import chunked


class Backend(NamedTuple):
    """An implementation, and in words why it is the one."""

    name: str
    function: Callable[..., Any]
    why: str


def choose(op: str, device: torch.device) -> Backend:
    """The fastest implementation of `op` on `device`. Raises NotFoundError, which lists the operations.

    The fla path was never run on a GPU: it is untested beyond this choice and the order of its arguments.
    """
    choices = _choices()
    if op not in choices:
        raise NotFoundError(f"no operation {op!r} has backends to choose from; there are: {', '.join(choices)}")
    return choices[op](device)


def chosen(device: torch.device) -> dict[str, str]:
    """What runs on `device`, and why, by operation."""
    backends = {op: pick(device) for op, pick in _choices().items()}
    return {op: f"{backend.name}: {backend.why}" for op, backend in backends.items()}


def _choices() -> dict[str, Callable[[torch.device], Backend]]:
    return {"delta_rule.chunked": _delta_rule, "delta_rule.traced": _traced_delta_rule}


def _delta_rule(device: torch.device) -> Backend:
    if device.type != "cuda":
        return Backend("torch", _untraced, f"fla's kernels need a GPU, and this is {device.type}")
    try:
        kernel = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    except (ImportError, AttributeError) as error:
        return Backend("torch", _untraced, f"fla can't be imported ({error})")
    return Backend("fla", _FlaDeltaRule(kernel), "fla's kernel runs a chunk without leaving the GPU's memory")


def _traced_delta_rule(device: torch.device) -> Backend:
    return Backend("torch", chunked, "the only one that returns a trace")


def _untraced(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    out, state, _ = chunked(q, k, v, g, beta, state)
    return out, state


class _FlaDeltaRule:
    """fla's kernel with our arguments. Ours are normalised already, and both scale outputs by d**-0.5."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        self.kernel = kernel

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        out, last = self.kernel(
            q=q, k=k, v=v, g=g, beta=beta, scale=q.shape[-1] ** -0.5, initial_state=state,
            output_final_state=True, use_qk_l2norm_in_kernel=False,
        )  # fmt: skip
        return out, last
