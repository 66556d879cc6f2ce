"""Two processes train what one trains, and either goes on from the other's checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trifolium.train.loop import METRICS

HELPERS = Path(__file__).parents[1] / "helpers"


def run(out: Path, steps: int, processes: int, what: str = "sharded_run.py") -> None:
    script = [str(HELPERS / what), str(out), str(steps)]
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def curve(out: Path) -> list[tuple[int, float, float, float]]:
    records = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    return [(r["step"], r["loss"], r["ar_loss"], r["grad_norm"]) for r in records]


def test_two_processes_train_what_one_trains_and_resume_each_other(tmp_path: Path) -> None:
    run(tmp_path / "one", 8, 1)
    run(tmp_path / "two", 4, 2)
    run(tmp_path / "two", 8, 1)  # another world size goes on
    one, two = curve(tmp_path / "one"), curve(tmp_path / "two")
    assert [c[0] for c in two] == list(range(1, 9))
    for a, b in zip(one, two, strict=True):
        assert b == pytest.approx(a, rel=2e-3), (a, b)
    assert one[-1][1] < one[0][1]
    (kept,) = (tmp_path / "two").glob("checkpoint-*")
    assert kept.name == "checkpoint-8"
    assert all(path.suffix in (".safetensors", ".json") for path in kept.iterdir())  # nothing pickled


def test_one_process_goes_on_as_two(tmp_path: Path) -> None:
    run(tmp_path / "a", 4, 1)
    run(tmp_path / "a", 8, 2)
    run(tmp_path / "b", 8, 1)
    assert curve(tmp_path / "a")[-1] == pytest.approx(curve(tmp_path / "b")[-1], rel=2e-3)


def test_skills_are_the_same_from_two_processes_and_resume(tmp_path: Path) -> None:
    run(tmp_path / "one", 6, 1, "skills_run.py")
    run(tmp_path / "two", 3, 2, "skills_run.py")
    run(tmp_path / "two", 6, 1, "skills_run.py")
    one, two = (
        [json.loads(line) for line in (tmp_path / name / METRICS).read_text().splitlines()] for name in ("one", "two")
    )
    assert [r["step"] for r in two] == list(range(1, 7))
    for a, b in zip(one, two, strict=True):
        for key in ("loss", "accuracy", "grad_norm", "answer_tokens", "padded_tokens"):
            assert b[key] == pytest.approx(a[key], rel=2e-3), (key, a, b)
    assert one[2]["held_out"]["loss"] == pytest.approx(two[2]["held_out"]["loss"], rel=1e-3)
    assert one[-1]["loss"] < one[0]["loss"]
