"""Lessons: valid by their own schemas, drawn from their seed alone, and true to what their texts say."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from typing import Any

import jsonschema
import pytest

from trifolium.cli import main
from trifolium.tools import ToolUse, lay_out, read_tools
from trifolium.tools.hermes import Hermes
from trifolium.train.lessons import LessonConfig, Statistics, lessons, write_lessons


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    return list(lessons(LessonConfig(count=1500)))


def calls_of(line: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """(place of the message, function) of every call."""
    return [(i, call["function"]) for i, m in enumerate(line["messages"]) for call in m.get("tool_calls", ())]


def test_every_skill_is_there_and_answers_come_last(lines):
    statistics = Statistics()
    for line in lines:
        statistics.add(line)
        assert line["messages"][-1]["role"] == "assistant" and line["complete"] is True
        assert all(m["content"] or m.get("tool_calls") for m in line["messages"])
    assert {name.split(":")[0] for name in statistics.skills} == {"tools", "extraction", "decisions"}
    assert min(statistics.skills.values()) >= 40 and len(statistics.tools) > 1000 and statistics.calls > 1500


def test_calls_are_valid_and_their_values_were_said(lines):
    said = 0
    for line in lines:
        tools = {tool["function"]["name"]: tool["function"] for tool in line.get("tools", ())}
        assert len(tools) == len(line.get("tools", ()))
        if tools:
            ToolUse(read_tools(line["tools"]))
        for place, call in calls_of(line):
            jsonschema.validate(call["arguments"], tools[call["name"]]["parameters"])
            assert list(call["arguments"]) == [
                n for n in tools[call["name"]]["parameters"]["properties"] if n in call["arguments"]
            ]
            heard = " ".join(m["content"] for m in line["messages"][:place] if m["role"] == "user").replace(",", "")
            for value in call["arguments"].values():
                if isinstance(value, str | int | float) and not isinstance(value, bool):
                    assert str(value).replace(",", "").lower() in heard.lower(), (value, heard)
                    said += 1
    assert said > 1000


def test_lines_can_be_laid_out(lines):
    for line in lines[:200]:
        told = lay_out(None, Hermes(), line["messages"], read_tools(line.get("tools", ())))
        assert all(isinstance(message["content"], str) and message["content"] for message in told)


def test_extraction_finds_what_the_text_says(lines):
    checked = 0
    for line in lines:
        if line["skill"] == "extraction":
            found = json.loads(line["messages"][-1]["content"])
            text = line["messages"][0]["content"]
            schema = re.search(r"JSON Schema: (.*)$", text)
            if schema:
                jsonschema.validate(found, json.loads(schema[1]))
            for value in found.values():
                if isinstance(value, str):
                    assert value in text
                    checked += 1
    assert checked > 200


def test_joint_answers_do_not_contradict_each_other(lines):
    """What is spam is no complaint; what asks for a refund is one."""
    pairs = 0
    for line in lines:
        if line["skill"] != "decisions: joint":
            continue
        asked, answer = (message["content"] for message in line["messages"])
        letters = answer.removeprefix("Answers: ").split()
        sheets = re.split(r"\n\nQuestion \d+: ", asked)[1:]
        assert len(sheets) == len(letters)
        chosen = {}
        for sheet, letter in zip(sheets, letters, strict=True):
            question, *options = sheet.split("\n\n")[0].split("\n")
            chosen[question] = next(o.split(". ", 1)[1] for o in options if o.startswith(f"{letter}. "))
        spam = next((v for q, v in chosen.items() if "spam" in q or "advertising" in q), None)
        refund = next((v for q, v in chosen.items() if "money back" in q or "refund" in q), None)
        wrong = next((v for q, v in chosen.items() if "complaint" in q or "problem" in q or "gone wrong" in q), None)
        if spam is not None and wrong is not None:
            pairs += 1
            assert (spam, wrong) != ("Yes", "Yes")
        if refund is not None and wrong is not None:
            pairs += 1
            assert (refund, wrong) != ("Yes", "No")
    assert pairs > 20


def test_equal_seeds_give_equal_bytes(tmp_path):
    digests = set()
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_lessons(LessonConfig(count=60, seed=3), tmp_path / name)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1
    plain = write_lessons(LessonConfig(count=60, seed=3), tmp_path / "c.jsonl")
    text = (tmp_path / "c.jsonl").read_bytes()
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()) == text and text.count(b"\n") == plain.lines
    assert list(lessons(LessonConfig(count=60, seed=4))) != list(lessons(LessonConfig(count=60, seed=3)))
    assert list(lessons(LessonConfig(count=30, seed=3))) == list(lessons(LessonConfig(count=60, seed=3)))[:30]


def test_the_command(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["generate-skills", "--out", str(tmp_path / "x.jsonl"), "--count", "40"])
    told = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and told["lines"] == len((tmp_path / "x.jsonl").read_text().splitlines())
