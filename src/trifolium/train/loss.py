"""Cross-entropy of hidden vectors under a frozen head, without ever holding all logits.

The head is the largest product of a small model. Training scores a shortlist of the vocabulary: the tokens that the
corpus uses most, all of the batch's targets, and random others as negatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 512
"""Rows whose logits are held at a time."""


class _FrozenHeadCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        loss = hidden.new_zeros(())
        correct = torch.empty(len(hidden), dtype=torch.bool)
        grad = torch.empty_like(hidden)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            logits = hidden[part].detach() @ head.T
            index = targets[part, None]
            peak, best = logits.max(-1, keepdim=True)
            chosen = logits.gather(1, index)
            logits.sub_(peak).exp_()
            total = logits.sum(-1, keepdim=True)
            w = weights[part, None]
            loss += ((total.log() + peak - chosen) * w).sum()
            correct[part] = (best == index)[:, 0]
            logits.mul_(w / total)
            logits.scatter_add_(1, index, -w)
            grad[part] = logits @ head
        ctx.save_for_backward(grad)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0], None, None, None


def frozen_head_cross_entropy(
    hidden_ND: Tensor, head_VD: Tensor, targets_N: Tensor, weights_N: Tensor
) -> tuple[Tensor, Tensor]:
    """sum_n w_n (-log softmax(h_n head^T)[target_n]) and whether each row's best token is its target [N].

    Gradients flow to `hidden_ND` only. Logits live CHUNK rows at a time; the gradient is made in the forward call.
    """
    loss, correct = _FrozenHeadCrossEntropy.apply(hidden_ND, head_VD, targets_N, weights_N)  # type: ignore[no-untyped-call]
    return loss, correct


class Shortlist:
    """The part of the vocabulary that a step scores.

    `frequent` token ids are always in; a batch adds its own targets and `negatives` random ids.
    """

    def __init__(self, counts_V: Tensor, frequent: int, negatives: int) -> None:
        self.frequent = torch.argsort(counts_V, descending=True, stable=True)[:frequent]
        self.vocab_size = len(counts_V)
        self.negatives = negatives

    def __call__(self, targets_N: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(ids [S] sorted, each target's index among them [N])."""
        random = torch.randint(self.vocab_size, (self.negatives,), generator=generator)
        ids = torch.unique(torch.cat((self.frequent, targets_N, random)))
        return ids, torch.searchsorted(ids, targets_N)


class _FrozenHeadDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, teacher: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        loss = hidden.new_zeros(())
        agrees = torch.empty(len(hidden), dtype=torch.bool, device=hidden.device)
        grad = torch.empty_like(hidden)
        for start in range(0, len(hidden), CHUNK):
            part = slice(start, start + CHUNK)
            q = (hidden[part].detach() @ head.T).log_softmax(-1)
            p = (teacher[part] @ head.T).log_softmax(-1)
            agrees[part] = p.argmax(-1) == q.argmax(-1)
            w = weights[part, None]
            likely = p.exp()
            loss += ((p - q) * likely * w).sum()
            grad[part] = ((q.exp_() - likely) * w) @ head
        ctx.save_for_backward(grad)
        ctx.mark_non_differentiable(agrees)
        return loss, agrees

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0], None, None, None


def frozen_head_divergence(
    hidden_ND: Tensor, head_VD: Tensor, teacher_ND: Tensor, weights_N: Tensor
) -> tuple[Tensor, Tensor]:
    """sum_n w_n KL(softmax(t_n head^T) || softmax(h_n head^T)) in nats, and whether both rank one token first [N].

    Gradients flow to `hidden_ND` only; as in `frozen_head_cross_entropy`, logits live CHUNK rows at a time.
    """
    loss, agrees = _FrozenHeadDivergence.apply(hidden_ND, head_VD, teacher_ND, weights_N)  # type: ignore[no-untyped-call]
    return loss, agrees
