"""The frozen-head loss against plain cross-entropy."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from trifolium.train import loss as module
from trifolium.train.loss import Shortlist, frozen_head_cross_entropy


def test_loss_and_gradient_equal_plain_cross_entropy(monkeypatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 5)  # several chunks, the last one short
    torch.manual_seed(0)
    hidden = torch.randn(13, 7, requires_grad=True)
    head, targets, weights = torch.randn(29, 7), torch.randint(29, (13,)), torch.rand(13)
    loss, correct = frozen_head_cross_entropy(hidden, head, targets, weights)
    (loss * 3).backward()
    plain = hidden.detach().clone().requires_grad_()
    logits = plain @ head.T
    expected = (F.cross_entropy(logits, targets, reduction="none") * weights).sum()
    (expected * 3).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(hidden.grad, plain.grad)
    assert torch.equal(correct, logits.argmax(-1) == targets)


def test_shortlist_holds_frequent_tokens_and_all_targets() -> None:
    counts = torch.zeros(100, dtype=torch.long)
    counts[[3, 50, 7]] = torch.tensor([5, 9, 7])
    shortlist = Shortlist(counts, 3, 4)
    targets = torch.tensor([99, 3, 99, 0])
    ids, index = shortlist(targets, torch.Generator().manual_seed(0))
    assert torch.equal(ids[index], targets)
    assert {3, 50, 7, 99, 0} <= set(ids.tolist())
    assert torch.equal(ids, ids.unique())
