"""The commands of the train room: what they refuse, and a whole small run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trifolium.cli import main


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1
    return error


def test_unwritable_targets_fail_before_a_model_is_loaded(capsys, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "file" in fails(capsys, "generate-data", "--out", str(tmp_path / "file" / "y.jsonl"))
    assert "file" in fails(capsys, "convert", "smollm2-135m", "--out", str(tmp_path / "file" / "y"))


def test_bad_recipes(capsys, tmp_path: Path) -> None:
    assert "recipe" in fails(capsys, "train")
    assert "does not exist" in fails(capsys, "train", str(tmp_path / "no.toml"))
    (tmp_path / "r.toml").write_text('data = ["x.jsonl"]\nlearning_rat = 1\n')
    assert "learning_rat" in fails(capsys, "train", str(tmp_path / "r.toml"))


@pytest.mark.real
def test_convert_then_train_then_answer(capsys, tmp_path: Path, default_gguf: Path) -> None:
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"Count {i}"},
                {"role": "assistant", "content": "one two three four"},
            ]
        }
        for i in range(6)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = tmp_path / "run"
    words = ["--data", "../data.jsonl", "--out", str(run), "--steps", "1", "--rank", "2"]
    with pytest.raises(SystemExit) as stop:
        main(["convert", str(default_gguf), *words])
    assert not stop.value.code
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text() + "tokens_per_batch = 64\nviews = 1\nevaluate_every = 9\n")
    with pytest.raises(SystemExit) as stop:
        main(["train", str(recipe), "--json"])
    assert not stop.value.code
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["step"] == 1 and record["loss"] > 0
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    import trifolium

    lm = trifolium.load(default_gguf, adapter=run / "adapter.safetensors")
    verified = lm.generate("Name the capital of France.", max_tokens=6, drafts="preview")
    assert verified.token_ids == lm.generate("Name the capital of France.", max_tokens=6, mode="ar").token_ids
