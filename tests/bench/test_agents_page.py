"""The page's section on what agents ask for: the latest of each measurement, and nothing that wasn't measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    yield import_module("suite.agents")
    for name in [name for name in sys.modules if name.split(".")[0] == "suite"]:
        del sys.modules[name]


VALID = {"schemas": 20, "seconds": 3.0, "counts": {"ar, stop": 30, "verified, length": 8, "INVALID": 1}}
CALLS = [{"model": "tiny", "turns": 40, "calls": 12, "empty turns": 0, "invalid calls": 2}]


def test_nothing_measured_is_no_section(agents: ModuleType, tmp_path: Path) -> None:
    assert agents.collect(tmp_path / "out", tmp_path) == {} and not list(tmp_path.iterdir())
    assert agents.markdown({}) == ""


def test_each_part_is_kept_until_it_is_measured_again(agents: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "structured_valid.json").write_text(json.dumps(VALID))
    agents.collect(out, tmp_path)
    (out / "structured_valid.json").unlink()
    (out / "tool_calls.json").write_text(json.dumps(CALLS))
    known = agents.collect(out, tmp_path)
    assert known == {"structured_valid": VALID, "tool_calls": CALLS}
    assert known == json.loads((tmp_path / "agents.json").read_text())
    page = agents.markdown(known)
    assert "38 documents" in page and "30 complete ones, of which 1 were invalid; 8 reached" in page
    assert "| `tiny` | 40 | 12 | 0 | 0 | 0 | 0 | 2 |" in page
    assert "decisions" not in page.split("\n", 1)[1]


def test_the_committed_figures_make_the_committed_section(agents: ModuleType) -> None:
    docs = BENCH.parent / "docs"
    page = (docs / "benchmarks.md").read_text("utf-8")
    known = json.loads((docs / "agents.json").read_text("utf-8"))
    assert agents.markdown(known) in page and set(known) <= set(agents.PARTS)
