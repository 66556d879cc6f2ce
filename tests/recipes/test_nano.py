"""The nano recipe: its one command runs on toy sizes, resumes, and compares what it says it compares."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NANO = ROOT / "recipes" / "nano"
VARIANTS = ("causal", "no-history", "history", "right-taps", "calibration")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(NANO / "make.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nano") / "run"
    done = make("--quick", "--out", str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (folder / "ablation.md").read_text().strip()
    return folder


def test_every_variant_is_trained_and_measured(out: Path) -> None:
    table = (out / "ablation.md").read_text()
    assert "Every `verified` answer equalled `ar`, token for token: yes" in table
    for name in VARIANTS:
        measured = json.loads((out / name / "seed-1" / "measured.json").read_text())
        assert set(measured["blocks"]) == set(measured["speed"]) == {"4", "8", "16", "32"}
        for size, found in measured["blocks"].items():
            assert found["masked_loss"] > 0 and len(found["accuracy"]) == int(size)
        assert all(found["verified"] >= 1 for found in measured["speed"].values())
    for picture in ("nano-ablation.png", "nano-losses.png", "pretrain/curves.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")


def test_variants_differ_in_what_they_train_and_in_nothing_else(out: Path) -> None:
    from safetensors.torch import load_file

    weights = {name: load_file(out / name / "seed-1" / "model.safetensors") for name in VARIANTS}
    bias, c, right, scale = (
        {
            name: [t for key, t in tensors.items() if key.endswith(f"preview.{part}")]
            for name, tensors in weights.items()
        }
        for part in ("history_bias", "history_c", "right", "logit_scale")
    )
    assert all(float(t.max()) == -1e4 for t in bias["no-history"])
    for name in VARIANTS:
        assert any(bool((t != 0).any()) for t in right[name]) == (name in ("right-taps", "calibration"))
        assert any(bool((t != 0).any()) for t in c[name]) == (name == "calibration") or name == "causal"
        assert any(bool((t != 1).any()) for t in scale[name]) == (name != "causal")
    first = [json.loads((out / name / "seed-1" / "metrics.jsonl").read_text().splitlines()[0]) for name in VARIANTS]
    assert len({record["rows"] for record in first}) == len({record["tokens"] for record in first}) == 1
    assert len({record["ar_loss"] for record in first}) == 1  # the same AR weights on the same batch
    assert len({record["loss"] for record in first}) >= 3


def test_the_report_goes_into_the_page(out: Path, tmp_path: Path) -> None:
    page = tmp_path / "nano.md"
    page.write_text((ROOT / "docs" / "nano.md").read_text())
    for _ in range(2):  # a second report replaces the first
        done = make("report", "--quick", "--out", str(out), "--docs", str(tmp_path))
        assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.count((out / "ablation.md").read_text().strip()) == 1
    wanted = re.findall(r"\]\((pictures/.*?)\)", text)
    assert wanted and all((tmp_path / picture).is_file() for picture in wanted)
    page.write_text("no marks")
    assert "made by report" in make("report", "--quick", "--out", str(out), "--docs", str(tmp_path)).stderr


def test_the_shipped_folder_is_a_model_that_answers(out: Path) -> None:
    import trifolium

    lm = trifolium.load(out / "nano", progress=False)
    assert lm.model.config.family == "clover_moe"
    result = lm.generate("Hello", max_tokens=4, ignore_eos=True)
    assert result.tokens == 4
    assert result.token_ids == lm.generate("Hello", mode="ar", max_tokens=4, ignore_eos=True).token_ids


def test_what_is_done_is_not_done_again(out: Path) -> None:
    files = [*out.rglob("*.safetensors"), *out.rglob("measured.json")]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert before
    done = make("--quick", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_unknown_stage_is_named() -> None:
    done = make("pretrian")
    assert done.returncode == 2
    assert "pretrian" in done.stderr and "pretrain" in done.stderr
