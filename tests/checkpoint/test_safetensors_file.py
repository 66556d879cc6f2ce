"""Weights go from the file into their tensors: every dtype, chunk by chunk, in little more memory than they take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from random_models import tiny_hybrid
from tiny_checkpoints import random_tensors
from trifolium.checkpoint import safetensors_file, write_hf
from trifolium.checkpoint.safetensors_file import contents, equal, read_into
from trifolium.errors import CorruptFileError

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]

_LOAD = """
import json, sys
import torch
from trifolium.checkpoint import open_checkpoint

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

report = []
open_checkpoint(sys.argv[1])
for dtype in (torch.bfloat16, torch.float32):
    before = peak()
    model = dict(open_checkpoint(sys.argv[2]).tensors(dtype))
    report.append((peak() - before, sum(tensor.nbytes for tensor in model.values())))
    assert all(tensor.dtype == dtype for tensor in model.values())
    kept = model  # the second model comes on top of the first one, or its peak would hide below it
print(json.dumps(report))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    tensors = {str(dtype): torch.randn(5, 3, 7, generator=generator).to(dtype) for dtype in DTYPES}
    save_file(tensors, tmp_path / "x.safetensors")
    return tmp_path / "x.safetensors"


@pytest.mark.parametrize("chunk", [1 << 20, 64, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_into_every_other(
    chunk: int, dtype: torch.dtype, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_file, "CHUNK_BYTES", chunk)
    generator = torch.Generator().manual_seed(0)
    expected = {str(dtype): torch.randn(5, 3, 7, generator=generator).to(dtype) for dtype in DTYPES}
    found = {stored.name: stored for stored in contents(path)}
    assert {name: stored.shape for name, stored in found.items()} == dict.fromkeys(expected, (5, 3, 7))
    for name, stored in found.items():
        out = torch.full((5, 3, 7), float("nan"), dtype=dtype)
        read_into(stored, out)
        assert torch.equal(out, expected[name].to(dtype))


def test_equality_is_of_all_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "CHUNK_BYTES", 64)
    a = torch.arange(91.0).view(13, 7)
    b = a.clone()
    b[-1, -1] += 1
    save_file({"a": a, "a2": a.clone(), "b": b, "half": a.half(), "t": a.T.contiguous()}, tmp_path / "x.safetensors")
    found = {stored.name: stored for stored in contents(tmp_path / "x.safetensors")}
    assert [name for name, stored in found.items() if equal(found["a"], stored)] == ["a", "a2"]


def test_a_file_that_shrank_since_it_was_opened(path: Path) -> None:
    last = max(contents(path), key=lambda stored: stored.start)
    path.write_bytes(path.read_bytes()[:-1])
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(CorruptFileError, match=r"x\.safetensors is damaged or incomplete.*fetch it again"):
            read_into(last, torch.empty(5, 3, 7, dtype=dtype))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_loading_needs_little_more_memory_than_the_model(tmp_path: Path) -> None:
    """The files are not held beside the model, nor is a stack of experts held twice: either would add 12 MB or more."""
    experts = {"count": 96, "top_k": 3, "size": 256, "shared_size": 26}
    layers = {"mixers": ("delta_net", "attention"), "feed_forwards": ("experts",) * 2}
    config = tiny_hybrid("qwen3_5_moe_text", hidden_size=256, num_layers=2, experts=experts, **layers)
    large = ((name, tensor.bfloat16()) for name, tensor in random_tensors(config).items())
    write_hf(tmp_path / "large", config, large)
    small = tiny_hybrid("qwen3_5_moe_text")
    write_hf(tmp_path / "small", small, random_tensors(small).items())
    command = [sys.executable, "-c", _LOAD, str(tmp_path / "small"), str(tmp_path / "large")]
    # Freed buffers go back at once, so that the peak is not what an allocator keeps for later.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    (narrow, narrow_model), (wide, wide_model) = json.loads(done.stdout)
    assert wide_model == 2 * narrow_model > 140e6
    assert narrow < narrow_model + 9e6
    assert wide < wide_model + 9e6
