"""Conversations as training data: which tokens are learned, how files are mixed, and what is refused."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trifolium.errors import ConfigError, CorruptFileError, NotFoundError
from trifolium.text import ChatTemplate
from trifolium.tools import format_of, lay_out, read_tools
from trifolium.train.data import LengthPlan, is_held_out
from trifolium.train.dialogues import (
    BUCKET,
    Dialogue,
    Encoder,
    Mixture,
    collate_dialogues,
    encode_dialogue,
    read_dialogues,
)

END = 0
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}


def characters(source: str | None = None) -> Encoder:
    """Each character is a token; `<` and `>` of the template's markers as all others, the end token is 0."""
    template = ChatTemplate(source)

    def prompt(messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return [ord(c) for c in template.render(messages).replace("<|im_end|>", "\0")]

    return Encoder(
        lambda messages, tools: lay_out(None, format_of(None), messages, read_tools(tools)),
        prompt,
        lambda text: [ord(c) for c in text],
        END,
    )


def turns(*texts: str) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def learned(dialogue: Dialogue) -> list[str]:
    """The runs of scored tokens as text, with the end token as `.`."""
    text = "".join(chr(t) if s else "|" for t, s in zip(dialogue.tokens, dialogue.scored, strict=True))
    return [run.replace("\0", ".") for run in text.split("|") if run]


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_every_answer_is_learned_with_its_end() -> None:
    dialogue = encode_dialogue(turns("Hi", "Yes", "And?", "No"), characters(), complete=True, skill="x")
    assert learned(dialogue) == ["Yes.", "No."]
    whole = "".join(map(chr, dialogue.tokens)).replace("\0", "<|im_end|>")
    assert whole == ChatTemplate(None).render(turns("Hi", "Yes", "And?")) + "No<|im_end|>"
    cut = encode_dialogue(turns("Hi", "Yes", "And?", "No"), characters(), complete=False, skill="x")
    assert learned(cut) == ["Yes.", "No"]


def test_an_answer_that_the_template_changes_later_is_only_read() -> None:
    shouting = "{% for m in messages %}[{{ m.content | upper }}<|im_end|>{% endfor %}["
    dialogue = encode_dialogue(turns("Hi", "Yes", "And?", "No"), characters(shouting), complete=True, skill="x")
    assert learned(dialogue) == ["No."]


def test_calls_and_results_are_laid_out_as_servers_do(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "Three."},
    ]
    path = write(tmp_path / "x.jsonl", {"messages": messages, "tools": [TOOL], "skill": "tools", "complete": True})
    file = read_dialogues(path, characters(), 4000)
    (dialogue,) = file.training or file.held_out
    assert learned(dialogue) == [
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>.',
        "Three..",
    ]
    text = "".join(map(chr, dialogue.tokens))
    assert "<tool_response>\n3\n</tool_response>" in text and '<tools>\n{"name": "add"' in text
    assert dialogue.skill == "tools"


def test_splits_limits_and_statistics(tmp_path: Path) -> None:
    names = [f"question {i}" for i in range(200)]
    lines = [{"messages": turns(name, "a" * (300 if i == 7 else 5))} for i, name in enumerate(names)]
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    file = read_dialogues(tmp_path / "x.jsonl.gz", characters(), 200)
    held = sum(map(is_held_out, names))
    assert held and (len(file.held_out), len(file.training), file.dropped) == (held, 199 - held, 1)
    about = file.about()
    assert about["skills"] == {"chat": 199 - held} and about["scored"] == 5 * (199 - held)
    assert file.density == about["scored"] / sum(-(-len(d.tokens) // BUCKET) * BUCKET for d in file.training)


@pytest.mark.parametrize(
    "line",
    [
        [],
        {"message": []},
        {"messages": "Hi"},
        {"messages": turns("Hi")},
        {"messages": [{"role": "assistant", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": 3}, {"role": "assistant", "content": "Hi"}]},
        {"messages": [{"role": "robot", "content": "Hi"}, *turns("Hi", "Yes")]},
        {"messages": [*turns("Hi"), {"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}]},
        {"messages": turns("Hi", "Yes"), "tools": [{"type": "teapot"}]},
        {"messages": turns("Hi", "Yes"), "skill": 3},
    ],
)
def test_broken_lines_are_named(tmp_path: Path, line: object) -> None:
    path = write(tmp_path / "x.jsonl", {"messages": turns("Hi", "Yes")}, line)
    with pytest.raises(CorruptFileError, match=r"x\.jsonl:2"):
        read_dialogues(path, characters(), 200)


def test_nothing_to_learn_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="is no file"):
        read_dialogues(tmp_path / "none.jsonl", characters(), 200)
    path = write(tmp_path / "x.jsonl", {"messages": turns("Hello there", "Yes" * 99)})
    with pytest.raises(ConfigError, match="1 are too long"):
        read_dialogues(path, characters(), 200)


def numbers(count: int, seed: int) -> list[Dialogue]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(10, 90, count)
    return [Dialogue(np.full(n, seed * 1000 + i), np.arange(n) > n // 2) for i, n in enumerate(lengths)]


def test_files_keep_to_their_shares_and_every_epoch_to_all_conversations() -> None:
    files = [numbers(60, 1), numbers(40, 2), numbers(30, 3)]
    mixture = Mixture(files, [6, 3, 1], 256, seed=5)
    batches = [mixture.batch(n) for n in range(300)]
    counts = np.zeros(3)
    for n, (source, batch) in enumerate(batches, 1):
        counts[source] += 1
        assert np.abs(counts - np.array([0.6, 0.3, 0.1]) * n).max() <= 1
        assert set(batch.tokens[:, 0] // 1000) == {source + 1}
        assert batch.tokens.shape[1] % BUCKET == 0 and batch.tokens.shape[1] - batch.length.max() < BUCKET
    again = Mixture(files, [6, 3, 1], 256, seed=5)
    for n in (299, 3, 120):  # a pure function of n: asked in any order
        assert again.batch(n)[0] == batches[n][0]
        assert np.array_equal(again.batch(n)[1].tokens, batches[n][1].tokens)
    plan = LengthPlan([len(d.tokens) for d in files[0]], 256, 5, bucket=BUCKET)
    seen: list[int] = []
    for step in itertools.count():
        seen += plan.batch(step)
        if len(seen) >= 60:
            break
    assert sorted(seen) == list(range(60))


def test_padding_is_neither_learned_nor_read() -> None:
    batch = collate_dialogues(numbers(3, 4))
    inside = np.arange(batch.tokens.shape[1]) < batch.length[:, None]
    assert not batch.scored[~inside].any() and not batch.tokens[~inside].any()
    assert batch.scored.sum() == sum(d.scored.sum() for d in numbers(3, 4))
