"""The benchmark against peers: it measures, goes on where it stopped, and says what it measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def peers(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "bench" / "peers.py"), "--out", str(out), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


MEASURE = (
    "--quick",
    "--model",
    "nano",
    "--threads",
    "1",
    "--systems",
    "float32-ar",
    "float32-verified",
    "--only",
    "chat",
)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    done = peers(folder, *MEASURE)
    assert done.returncode == 0, done.stderr
    return folder


def test_both_modes_are_measured_and_agree(out: Path) -> None:
    found = json.loads((out / "benchmarks.json").read_text())
    cells = {cell["system"]: cell for cell in found["cells"]}
    assert set(cells) == {"float32-ar", "float32-verified"} and not found["faults"]
    assert cells["float32-ar"]["tokens_per_pass"] == 1.0
    assert cells["float32-verified"]["agreement"] == ["float32-ar", 1.0, 1.0]
    for cell in cells.values():
        assert cell["tokens"] == 8 and cell["requests"] == 1
        assert 0 < cell["ttft_ms"] < 1e3 * cell["wall"] and cell["peak_mb"] > 50
    page = (out / "benchmarks.md").read_text()
    assert "Trifolium float32, verified" in page and "same number of tokens" in page
    assert (out / "pictures" / "bench-one.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch, out: Path) -> Iterator[Callable[..., None]]:
    """Runs the command in this process, which is sooner."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "bench"))

    def run(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["peers.py", "--out", str(out), *MEASURE, *words])
        import_module("peers").main()

    yield run
    for name in set(sys.modules) - known:
        if name.split(".")[0] in ("peers", "suite", "systems", "frames"):
            del sys.modules[name]


def test_a_second_run_measures_nothing_again(out: Path, again: Callable[..., None]) -> None:
    before = (out / "journal.jsonl").read_text().splitlines()
    page = (out / "benchmarks.json").read_text()
    again()
    after = (out / "journal.jsonl").read_text().splitlines()
    assert after[: len(before)] == before and len(after) == len(before) + 1  # the session
    assert json.loads(page)["cells"] == json.loads((out / "benchmarks.json").read_text())["cells"]


def test_a_journal_of_other_settings_is_not_mixed_with(again: Callable[..., None]) -> None:
    with pytest.raises(SystemExit, match=r"other threads.*--fresh"):
        again("--threads", "2")
