"""`trifolium decide` and `trifolium calibrate`, on a tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tiny_engine import write_folder
from trifolium.cli import main

BODY = {
    "state": "Pay now!",
    "questions": {
        "spam": {"type": "noul", "instructions": "Is it advertising?"},
        "tone": {"type": "choice", "instructions": "Tone?", "criteria": {"rude": None, "kind": None}},
        "urgency": {"type": "score", "criteria": ["low", "high"]},
    },
    "trifolium": {"joint": [{"questions": ["spam", "tone"], "given": {"spam": True}}]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("decide") / "tiny", max_positions=2000).path


@pytest.fixture
def run(folder, capsys, monkeypatch, tmp_path):
    """(exit code, stdout, stderr) of a command, with a cache folder of its own."""
    monkeypatch.setenv("TRIFOLIUM_CACHE", str(tmp_path / "cache"))

    def call(*arguments: str, stdin: str | None = None):
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as caught:
            main([*arguments, "--model", str(folder), "--dtype", "int8"])
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return call


def test_json_has_every_answer_and_every_group(run, tmp_path):
    (tmp_path / "mail.json").write_text(json.dumps(BODY))
    code, out, err = run("decide", str(tmp_path / "mail.json"), "--json")
    found = json.loads(out)
    assert code == 0 and err == ""
    assert [answer["name"] for answer in found["answers"]] == ["spam", "tone", "urgency"]
    assert sum(one["probability"] for one in found["answers"][1]["probabilities"]) == pytest.approx(1.0)
    (joint,) = found["joint"]
    assert set(joint["best"]) == {"spam", "tone"} and joint["unseen_mass"] == 0.0 and joint["orders"] == 2
    assert joint["conditionals"]["spam"]["answer"] is True
    assert set(found["usage"]) == {"input_tokens", "cached_tokens", "output_tokens"}


def test_people_get_lines(run):
    code, out, _ = run("decide", "-", stdin=json.dumps(BODY))
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("spam") and "yes" in lines[0]
    assert any(line.startswith("jointly, spam, tone") for line in lines)
    assert "if what is given holds" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is not JSON"),
        ('{"state": "x", "state": "y"}', "'state' is there twice"),
        ('{"state": "x", "questions": {"q": {"type": "box"}}}', "questions.q.type: box questions"),
        ('{"state": "", "questions": {"q": {"type": "noul", "instructions": "?"}}}', "the state is empty"),
    ],
)
def test_faults_are_one_line(run, text, message):
    code, out, err = run("decide", "-", stdin=text)
    assert code == 2 and out == "" and err.startswith("error: ") and message in err and err.count("\n") == 1


def test_a_missing_file_is_named(run):
    code, _, err = run("decide", "nowhere.json")
    assert code == 2 and "there is no file nowhere.json" in err


def test_calibrating_changes_later_answers(run, tmp_path):
    lines = [
        json.dumps({"state": f"mail {i}", "questions": BODY["questions"], "gold": {"spam": i % 2 == 0, "tone": "kind"}})
        for i in range(6)
    ]
    data = tmp_path / "known.jsonl"
    data.write_text("\n".join(lines))
    asked = json.dumps({**BODY, "trifolium": None})
    before = json.loads(run("decide", "-", "--json", stdin=asked)[1])["answers"]
    code, out, _ = run("calibrate", str(data), "--dry-run", "--json")
    dry = json.loads(out)
    assert code == 0 and dry["before"]["count"] == 12 and dry["after"]["loss"] <= dry["before"]["loss"] + 1e-9
    assert json.loads(run("decide", "-", "--json", stdin=asked)[1])["answers"] == before
    picture = tmp_path / "plot.png"
    code, out, _ = run("calibrate", str(data), "--plot", str(picture))
    assert code == 0 and "temperatures: noul" in out and "kept in" in out and picture.exists()
    (kept,) = (tmp_path / "cache" / "decisions").iterdir()
    temperatures = json.loads(kept.read_text())["temperatures"]
    assert temperatures == dry["temperatures"] and set(temperatures) == {"noul", "choice"}
    after = json.loads(run("decide", "-", "--json", stdin=asked)[1])["answers"]
    assert after[2] == before[2]
    for old, new, kind in zip(before, after, ("noul", "choice"), strict=False):
        powers = [one["probability"] ** (1 / temperatures[kind]) for one in old["probabilities"]]
        expected = [power / sum(powers) for power in powers]
        assert [one["probability"] for one in new["probabilities"]] == pytest.approx(expected)
