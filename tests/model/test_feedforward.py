"""The feed-forward's two forms of SwiGLU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from random_models import with_threads
from trifolium.ops.pointwise import swiglu, swiglu_exact


def test_both_forms_are_silu_times_up() -> None:
    x = torch.cat((torch.randn(9, 14, generator=torch.Generator().manual_seed(0)) * 5, torch.full((1, 14), -200.0)))
    x[-1, 3] = 200.0
    gate, up = x[:, :7].double(), x[:, 7:].double()
    expected = (F.silu(gate) * up).float()
    for form in (swiglu, swiglu_exact):
        assert torch.allclose(form(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [7, 1501, 8190])
def test_exact_form_has_the_same_bits_for_any_number_of_rows(size: int, threads: int) -> None:
    """For sizes that are no multiple of a vector, and passes that torch splits between threads within a row."""

    def check() -> None:
        x = torch.randn(50, 2 * size, generator=torch.Generator().manual_seed(size)) * 3
        expected = torch.cat([swiglu_exact(row[None]) for row in x])
        for rows in (2, 17, 50):
            assert torch.equal(swiglu_exact(x[:rows]), expected[:rows])

    with_threads(threads, check)
