"""Temperatures: found where they are known, kept atomically, used by the model that they were made for."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from trifolium import Question
from trifolium.decide import Answer
from trifolium.decide.calibration import CalibrationFile, Labelled, Report, fit, heat, plot
from trifolium.decide.labelled import read
from trifolium.errors import ConfigError, UsageError

CHOICE = Question.choice("q", "?", ["a", "b", "c"])


def drawn(question: Question, sharpness: float, count: int, seed: int) -> list[Labelled]:
    """Answers whose truth is drawn from them, then made too sure by `sharpness`."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        logs = [rng.gauss(0.0, 1.5) for _ in question.options]
        total = sum(map(math.exp, logs))
        honest = Answer(question, tuple(math.exp(value) / total for value in logs))
        right = rng.choices(range(len(logs)), honest.probabilities)[0]
        gold = tuple(float(i == right) for i in range(len(logs)))
        out.append(Labelled(heat(honest, 1.0 / sharpness), gold))
    return out


def test_it_finds_the_temperature_that_the_data_was_spoilt_with():
    noul = Question.noul("n", "?")
    data = drawn(CHOICE, 2.5, 4000, 0) + drawn(noul, 0.5, 4000, 1)
    temperatures = fit(data)
    assert set(temperatures) == {"choice", "noul"}
    assert temperatures["choice"] == pytest.approx(2.5, rel=0.08)
    assert temperatures["noul"] == pytest.approx(0.5, rel=0.08)
    before = Report.of(data)
    after = Report.of([one.heated(temperatures[one.answer.question.type]) for one in data])
    assert after.error < 0.03 < before.error and after.loss < before.loss
    assert after.accuracy == before.accuracy and after.sure_loss < before.sure_loss


def test_reports_count_by_hand():
    def one(p: float, right: bool) -> Labelled:
        return Labelled(Answer(Question.noul("n", "?"), (p, 1.0 - p)), (float(right), float(not right)))

    report = Report.of([one(0.95, True), one(0.95, False), one(0.65, True), one(0.3, False)])
    assert report.accuracy == 0.75 and report.sure_loss == 0.25
    assert [(bin.low, bin.count, bin.accuracy) for bin in report.bins] == [(0.6, 1, 1.0), (0.7, 1, 1.0), (0.9, 2, 0.5)]
    assert report.error == pytest.approx((0.35 + 0.3 + 2 * 0.45) / 4)
    assert report.loss == pytest.approx(-math.log(0.95 * 0.05 * 0.65 * 0.7) / 4)


def test_confidence_is_as_documented():
    assert Answer(CHOICE, (0.6, 0.3, 0.1)).confidence == pytest.approx((0.6 - 1 / 3) / (2 / 3))
    assert Answer(Question.noul("n", "?"), (0.2, 0.8)).confidence == pytest.approx(0.6)
    score = Question.score("s", "?", ["low", "mid", "high"])
    assert Answer(score, (0.1, 0.7, 0.2)).confidence == pytest.approx(0.7)
    assert Answer(score, (0.6, 0.0, 0.4)).confidence == pytest.approx(0.2)
    assert Answer(score, (0.1, 0.7, 0.2)).score == pytest.approx(1.1)


def test_a_file_is_kept_whole_and_read_back(tmp_path: Path):
    file = CalibrationFile.of("f" * 64, tmp_path)
    assert file.read() == {}
    file.write({"noul": 1.5})
    file.write({"noul": 1.25, "score": 3.0})
    assert file.read() == {"noul": 1.25, "score": 3.0}
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    assert CalibrationFile.of("e" * 64, tmp_path).read() == {}
    blocked = CalibrationFile(tmp_path / "file" / "x.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        blocked.write({})


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": 2}',
        '{"format": 1, "temperatures": {"box": 1}}',
        '{"format": 1, "temperatures": {"noul": 0}}',
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: str):
    file = CalibrationFile(tmp_path / "broken.json")
    file.path.write_text(content)
    with pytest.raises(ConfigError, match=r"broken.json is no calibration"):
        file.read()


def line(**changes: object) -> str:
    questions = {
        "n": {"type": "noul", "instructions": "?"},
        "c": {"type": "choice", "criteria": {"x": None, "y": None}},
    }
    return json.dumps(
        {"state": "s", "questions": questions, "gold": {"n": True, "c": {"x": 3e-1, "y": 0.1}}, **changes}
    )


def test_known_answers_are_values_or_shares():
    (one,) = read(line() + "\n\n")
    assert one.gold == {"n": (1.0, 0.0), "c": pytest.approx((0.75, 0.25))}
    assert [question.name for question in one.inquiry.questions] == ["n", "c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line() + "\n" + line(gold={"z": 1}), "line 2: gold.z: there is no question"),
        (line(gold={"c": "z"}), "line 1: gold.c: .*no option 'z'"),
        (line(gold={"n": "true"}), "no option 'true'"),
        (line(gold={"c": {"z": 1}}), "no option 'z'"),
        (line(gold={"c": {"x": 2}}), "no probability"),
        (line(gold={"c": {"x": 0}}), "all 0"),
        (line(gold=None), "gold is missing"),
        (line(gold={}), "no answer to learn from"),
        ("{", "line 1: this is not JSON"),
        ("", "no answer to learn from"),
    ],
)
def test_faulty_data_is_refused_by_line(text: str, message: str):
    with pytest.raises(UsageError, match=message):
        read(text)


def test_a_plot_is_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plot.png"
    plot({"before": Report.of(drawn(CHOICE, 2.0, 50, 0))}, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
