"""What becomes of measurements: rates and latencies, agreement, targets, and that turns cover what they should."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in set(sys.modules) - known:
        if name.split(".")[0] in ("peers", "suite", "systems", "frames", "make"):
            del sys.modules[name]


def answer(id: str, arrivals: list[tuple[float, int]], passes: int, text: str = "") -> dict[str, Any]:
    tokens = sum(count for _, count in arrivals)
    return {"id": id, "text": text, "tokens": tokens, "finish": "length", "arrivals": arrivals, "passes": passes}


def record(wall: float, *answers: dict[str, Any]) -> dict[str, Any]:
    facts = {"template_tokens": {"theirs": 5, "ours": 5}}
    return {"wall": wall, "answers": list(answers), "peak_bytes": 2**20, "joules": 3.0, "facts": facts}


def test_tokens_that_come_together_share_their_wait() -> None:
    measures = import_module("suite.measures")
    streamed = measures.deliveries([(0.5, 1), (0.6, 1), (0.6004, 1), (0.6008, 1), (0.7, 2)])
    assert streamed == [(0.5, 1), (0.6008, 3), (0.7, 2)]
    assert measures.gaps_ms(streamed) == pytest.approx([33.6] * 3 + [49.6] * 2)


def test_numbers_of_one_measurement() -> None:
    numbers = import_module("suite.measures").numbers_of(
        record(2.0, answer("a", [(0.2, 1), (0.4, 3)], 2), answer("b", [(0.6, 1), (1.6, 1)], 2))
    )
    assert numbers["tokens"] == 6 and numbers["tok_s"] == 3.0
    assert numbers["ttft_ms"] == pytest.approx(400)
    assert numbers["decode_tok_s"] == pytest.approx(4 / 1.2)  # 3 tokens in 0.2 s, 1 in 1 s
    assert numbers["tokens_per_pass"] == 1.5 and numbers["passes_s"] == pytest.approx(4 / 1.2 / 1.5)
    assert numbers["p50_ms"] == pytest.approx(200 / 3) and numbers["p99_ms"] == pytest.approx(1000)
    assert numbers["peak_mb"] == 1 and numbers["joules_per_token"] == 0.5


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.51, 3), (0.99, 4), (0.01, 1)])
def test_percentiles_are_values_that_occurred(share: float, value: int) -> None:
    assert import_module("suite.measures").percentile([3, 1, 4, 2], share) == value


def test_agreement_and_copying() -> None:
    measures = import_module("suite.measures")
    assert measures.agreement({"a": "same", "b": "some one"}, {"a": "same", "b": "some two", "c": "x"}) == (0.5, 0.8125)
    assert measures.agreement({"a": "x"}, {"b": "x"}) is None
    assert measures.copied("one two three four six", "zero one two three four five") == 0.5


def results(tmp_path: Path, *records: tuple[str, dict[str, Any]]) -> Any:
    path = tmp_path / "journal.jsonl"
    journal = import_module("suite.journal").Journal(path, {"model": "m", "fingerprint": "f" * 20, "commit": "c"})
    for key, values in records:
        journal.add({"key": key, **values})
    with path.open("a") as file:
        file.write('{"key": "1/1/chat/int4-ar", "wa')  # a run ended in the middle of a line
    again = import_module("suite.journal").Journal.read(path)
    assert again.records == json.loads(json.dumps(journal.records)) and again.identity == journal.identity
    return import_module("suite.results").Results(again)


def single(wall: float, seconds: float, text: str = "text") -> dict[str, Any]:
    return record(wall, answer("chat-01", [(0.5, 1), (0.5 + seconds, 10)], 6, text))


def test_ratios_are_of_one_round(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        ("1/1/chat/llamacpp", single(2.0, 1.0)),
        ("2/1/chat/llamacpp", single(20.0, 10.0)),  # the machine was busy, for both
        ("3/1/chat/llamacpp", single(2.0, 1.0)),
        ("1/1/chat/int4-verified", single(1.0, 0.5)),
        ("2/1/chat/int4-verified", single(10.0, 5.0)),
        ("1/1/chat/int4-ar", single(1.0, 2.0)),
        ("3/1/chat/int4-diffusion", {"error": "went wrong"}),
    )
    assert found.ratio(1, "chat", "int4-verified", "llamacpp", "decode_tok_s") == pytest.approx(2.0)
    assert found.ratio(1, "chat", "int4-ar", "transformers", "tok_s") is None
    assert found.agreement(1, "chat", "int4-verified") == ("int4-ar", 1.0, 1.0)
    assert found.agreement(1, "chat", "int4-ar") is None
    targets = {t.slug: (t, t.measure(found)) for t in import_module("suite.targets").TARGETS}
    met = {slug: target.met(finding) for slug, (target, finding) in targets.items()}
    assert met == {
        "chat": True, "extract": None, "sixteen": None, "never-below": True, "ar": False, "rows": None,
        "scheduler": None, "prefix": None,
    }  # fmt: skip
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "ar.md").write_text("Why it is so.\n")
    page = import_module("suite.page").markdown(found, [], notes)
    assert "| 0.50 x | **no** |" in page and "Why it is so." in page
    assert "`3/1/chat/int4-diffusion`: went wrong" in page


def test_growth_and_hits_reach_the_page(tmp_path: Path) -> None:
    rows = [{"rows": 1, "plain_ms": 10.0}, {"rows": 64, "plain_ms": 30.0, "fused_ms": 13.0}]
    facts = {"template_tokens": {"theirs": None, "ours": 5}}
    shares = {
        "requests": 64,
        "steps": 9,
        "ms_per_step": 80.0,
        "scheduler_share": 0.04,
        "runner_share": 0.9,
        "proposer_share": 0.06,
    }
    questions = [answer(f"prefix-{i}", [(at, 1)], 1) for i, at in enumerate((5.0, 0.2, 0.1, 0.3))]
    found = results(
        tmp_path,
        ("1/1/rows/int4-ar", {"facts": facts, "rows": rows}),
        ("1/64/overhead/int4-verified", {"facts": facts, "overhead": shares}),
        ("1/1/prefix/int4-verified", record(9.0, *questions)),
        ("1/1/context/int4-ar", record(9.0, answer("context-512", [(1.0, 1), (1.2, 2), (1.4, 2)], 5))),
    )  # fmt: skip
    values = {t.slug: t.measure(found).value for t in import_module("suite.targets").TARGETS}
    assert (
        values["rows"] == 1.3 and values["scheduler"] == pytest.approx(0.04) and values["prefix"] == pytest.approx(0.04)
    )
    assert found.contexts["int4-ar"][0]["ms_per_token"] == pytest.approx(100)
    assert found.contexts["int4-ar"][0]["ms_per_delivery"] == pytest.approx(200)
    page = import_module("suite.page").write(found, tmp_path / "docs", tmp_path / "docs" / "pictures")
    assert "100.0 (200.0)" in page.read_text() and "| 5000 | 200 | 100 | 300 |" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text())["rows"] == {"int4-ar": rows}


def test_turns_measure_every_cell_once_and_take_turns() -> None:
    matrix = import_module("suite.matrix")
    default = tuple(system for system in matrix.SYSTEMS if system.default)
    turns = matrix.turns_of(matrix.Choice(default, matrix.PARTS, matrix.LOADS, 3))
    keys = [cell.key for turn in turns for cell in turn.cells]
    assert len(keys) == len(set(keys))
    assert {cell.system.name for turn in turns for cell in turn.cells} == {system.name for system in default}
    for turn in turns:
        assert {cell.system.process for cell in turn.cells} == {turn.process}
    firsts = [
        next(t.process for t in turns if (t.round, t.load, t.lengthy) == (round, 1, False)) for round in (1, 2, 3)
    ]
    assert len(set(firsts)) == 3, "a round begins where the one before had its second"
    for load, part in ((1, "chat"), (4, "chat"), (16, "chat"), (64, "chat"), (1, "extract"), (16, "code")):
        for name in ("llamacpp", "int4-ar", "int4-verified"):
            assert {f"{round}/{load}/{part}/{name}" for round in (1, 2, 3)} <= set(keys)


def test_prompt_files_are_what_their_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH / "prompts"))
    for name, made in import_module("make").files().items():
        lines = (BENCH / "prompts" / name).read_text("utf-8").splitlines()
        assert [json.loads(line) for line in lines] == list(made), name
        ids = [json.loads(line)["id"] for line in lines]
        texts = [json.loads(line)["messages"][-1]["content"] for line in lines]
        assert len(set(ids)) == len(set(texts)) == len(lines)
