"""Conversations in a model's own words: reproducible, continued, in any batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trifolium
from trifolium.errors import CorruptFileError
from trifolium.train.generate import GenerationConfig, generate_data, user_turn_prefix


@pytest.fixture(scope="module")
def lm(default_gguf: Path) -> trifolium.LM:
    return trifolium.load(default_gguf, adapter=None, dtype="int8")


CONFIG = GenerationConfig(count=3, question_tokens=24, answer_tokens=12, batch=4, openings=("What is", "List"))


@pytest.mark.real
def test_conversations_are_written_continued_and_reproduced(lm: trifolium.LM, tmp_path: Path) -> None:
    done = []
    assert generate_data(lm, CONFIG, tmp_path / "a.jsonl", on_line=lambda w: done.append(w.done)) == len(done) >= 3
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert done == list(range(1, len(lines) + 1))
    for line in lines:
        question, answer = (message["content"] for message in line["messages"])
        assert question.startswith(("What is", "List"))
        assert lm.generate(question, mode="ar", max_tokens=12).text == answer
        assert line["complete"] or line["answer_tokens"] == 12
    assert len({line["messages"][0]["content"] for line in lines}) == len(lines)
    # One at a time gives the same questions and answers, in the same order.
    alone = CONFIG.model_copy(update={"batch": 1})
    generate_data(lm, alone, tmp_path / "b.jsonl")
    again = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert again == lines[: len(again)] and len(again) == 3
    # A file with enough lines is left alone; a longer count goes on after it.
    before = (tmp_path / "b.jsonl").read_text()
    assert generate_data(lm, alone, tmp_path / "b.jsonl") == 0
    generate_data(lm, alone.model_copy(update={"count": 4}), tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_text().startswith(before)


@pytest.mark.real
def test_the_prefix_is_an_unfinished_user_turn(lm: trifolium.LM) -> None:
    text = lm.tokenizer.decode(user_turn_prefix(lm, "Explain"))
    assert text.endswith("<|im_start|>user\nExplain")


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "x"}], "index": 0}\nnot json\n')
    with pytest.raises(CorruptFileError, match=r"x\.jsonl:2"):
        generate_data(None, CONFIG, path)  # type: ignore[arg-type]
