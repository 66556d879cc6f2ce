"""docs/decisions.md: its request is one, and its Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trifolium.decide import systemone

TEXT = (Path(__file__).parents[2] / "docs" / "decisions.md").read_text()


def test_the_request_can_be_asked() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", TEXT, re.S)
    inquiry = systemone.read(systemone.parse(block))
    assert len(inquiry.questions) == 4 and len(inquiry.groups) == 1
    assert inquiry.groups[0].legal is not None and 0 < len(inquiry.groups[0].legal) < 12


@pytest.mark.real
def test_its_python_runs(default_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/decisions.md", "exec"), names)
    assert "urgency" in capsys.readouterr().out
