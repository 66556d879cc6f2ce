"""Corpora: reading, splitting, and batches that follow from seed and step."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from trifolium.errors import ConfigError, CorruptFileError, NotFoundError
from trifolium.train.data import BatchPlan, Conversation, encode_corpus, is_held_out, read_corpus


def _line(user: str, answer: str = "yes", **more: object) -> str:
    return json.dumps(
        {"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": answer}], **more}
    )


def test_reads_plain_and_gzip(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(_line("1") + "\n" + _line("2"))
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write(_line("3"))
    users = [item["messages"][0]["content"] for item in read_corpus([tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"])]
    assert users == ["1", "2", "3"]


@pytest.mark.parametrize("bad", ["{", "[]", '{"messages": 3}', '{"messages": [{"role": "user", "content": "x"}]}'])
def test_bad_line_is_named(tmp_path: Path, bad: str) -> None:
    (tmp_path / "a.jsonl").write_text(_line("1") + "\n" + bad)
    with pytest.raises(CorruptFileError, match=r"a\.jsonl:2"):
        list(read_corpus([tmp_path / "a.jsonl"]))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\.jsonl"):
        list(read_corpus([tmp_path / "none.jsonl"]))


def test_split_is_by_prompt_and_end_marks_complete_answers() -> None:
    users = [f"question {i}" for i in range(300)]
    items = [json.loads(_line(u, "abc", complete=i % 2 == 0)) for i, u in enumerate(users)]
    training, held_out = encode_corpus(
        items, lambda ms: [ord(c) for c in ms[0]["content"]], lambda text: [ord(c) for c in text], 2, 64
    )
    expected = [u for u in users if is_held_out(u)]
    assert 0 < len(expected) < 30
    assert ["".join(map(chr, c.tokens[: c.answer])) for c in held_out] == expected
    assert len(training) == 300 - len(expected)
    for conversation in training + held_out:
        number = int("".join(map(chr, conversation.tokens[: conversation.answer])).split()[1])
        assert (conversation.tokens[-1] == 2) == (number % 2 == 0)


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(ConfigError):
        encode_corpus([json.loads(_line("q", "abc"))], lambda ms: list(range(64)), lambda text: [1], 2, 64)


def test_batches_cover_every_epoch_once(corpus: list[Conversation]) -> None:
    plan = BatchPlan(corpus, 256, seed=3)
    seen: list[bytes] = []
    steps = 0
    while len(seen) < len(corpus):
        batch = plan.batch(steps)
        assert batch.tokens.shape[1] % 64 == 0
        seen += [row[:n].tobytes() for row, n in zip(batch.tokens, batch.length, strict=True)]
        steps += 1
    assert sorted(seen) == sorted(c.tokens.tobytes() for c in corpus)
    later = plan.batch(steps + 2)  # into the second epoch, then back
    again = BatchPlan(corpus, 256, seed=3)
    assert np.array_equal(again.batch(steps + 2).tokens, later.tokens)
    assert np.array_equal(again.batch(0).tokens, plan.batch(0).tokens)
