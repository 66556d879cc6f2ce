"""The names that programs import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import trifolium


def test_public_names():
    assert sorted(trifolium.__all__) == [
        *("CanvasEvent", "Cell", "Decisions", "DecodeConfig", "Event", "FinishedEvent", "Group", "LM", "Question"),
        *("Result", "SamplingParams"),
        *("TextEvent", "TrifoliumError", "__version__", "convert_base", "load", "train_recipe"),
    ]
    for name in trifolium.__all__:
        assert getattr(trifolium, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = trifolium.lode


def test_importing_loads_nothing_heavy():
    code = "import sys, trifolium; print(sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
