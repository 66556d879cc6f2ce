"""The C++ kernels: their sums, bits that don't depend on company or threads, and what happens without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trifolium.ops import native
from trifolium.ops.delta_rule.reference import recurrent

needs_kernels = pytest.mark.skipif(native.native().library is None, reason=f"no kernels: {native.native().why}")
DTYPES = [torch.float32, torch.bfloat16]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@needs_kernels
def test_delta_rows_and_apply() -> None:
    n, heads, d, e = 6, 5, 12, 19
    q, k = (torch.nn.functional.normalize(random(n, heads, d, seed=s), dim=-1) for s in (1, 2))
    v, g, beta = random(n, heads, e, seed=3), -random(n, heads, seed=4).abs(), random(n, heads, seed=5).sigmoid()
    state = random(heads, d, e, seed=6)
    before = state.clone()
    out, updates, kept, last = native.delta_rows(q, k, v, g.exp(), beta, state, {1, 4})
    theirs, end = recurrent(q[None], k[None], v[None], g[None], beta[None], state[None])
    assert torch.allclose(out, theirs[0].float(), rtol=1e-4, atol=1e-5)
    assert torch.allclose(last, end[0].float(), rtol=1e-4, atol=1e-5)
    assert torch.equal(state, before)
    for row in range(n):
        part = native.delta_rows(
            q[: row + 1], k[: row + 1], v[: row + 1], g[: row + 1].exp(), beta[: row + 1], state, ()
        )
        assert torch.equal(part[0], out[: row + 1])
        assert torch.equal(native.delta_apply(state, g.exp(), k, updates, range(row + 1)), part[3])
        if row in kept:
            assert torch.equal(kept[row], part[3])
    assert sorted(kept) == [1, 4]


def why(**environment: str) -> str:
    code = "from trifolium.ops.native import native; found = native(); print(found.library is None, '|', found.why)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_it_can_be_switched_off_and_may_fail(tmp_path: Path) -> None:
    assert why(TRIFOLIUM_NATIVE="0") == "True | TRIFOLIUM_NATIVE=0"
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken 1 && exit 0\necho out of luck >&2\nexit 1\n')
    broken.chmod(0o755)
    cache = str(tmp_path / "cache")
    assert why(CXX=str(broken), TRIFOLIUM_CACHE=cache) == f"True | {broken} failed: out of luck"
    assert not list((tmp_path / "cache" / "native").glob("*.so"))  # nothing half made is left
    assert why(CXX=str(tmp_path / "missing"), TRIFOLIUM_CACHE=cache).startswith("True | ")
