"""The chat: what a typed line does, and what is shown of an answer."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import trifolium
from tiny_engine import write_folder
from trifolium.cli.chat import history_file
from trifolium.cli.conversation import Conversation
from trifolium.cli.show import AnswerView, canvas_text
from trifolium.engine import Cell


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("chat") / "tiny").path


@pytest.fixture(scope="module")
def lm(folder: Path) -> trifolium.LM:
    return trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype="float32")


@pytest.fixture
def chat(lm):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, highlight=False, color_system=None)
    conversation = Conversation(lm, {"mode": "verified", "max_tokens": 10}, console, terminal=True)
    return conversation, out


def test_turns_follow_on_each_other(chat, lm):
    conversation, out = chat
    conversation.enter("Hello")
    first = lm.generate("Hello", max_tokens=10).text
    assert conversation.messages == [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": first}]
    conversation.enter("More")
    expected = lm.generate([*conversation.messages[:2], {"role": "user", "content": "More"}], max_tokens=10).text
    assert conversation.messages[3]["content"] == expected
    conversation.enter("/stats")
    assert "all 2 answers: " in out.getvalue()


def test_commands(chat, tmp_path):
    conversation, out = chat
    conversation.enter("   ")
    conversation.enter("/stats")
    assert "no answers yet" in out.getvalue()
    conversation.enter("Hello")
    conversation.enter(f"/save {tmp_path / 'talk.json'}")
    assert json.loads((tmp_path / "talk.json").read_text())["messages"] == conversation.messages
    conversation.enter("/clear")
    assert conversation.messages == []
    conversation.enter("/system Speak like a pirate")
    conversation.enter("/mode diffusion")
    conversation.enter("Hello")
    assert conversation.system == "Speak like a pirate" and len(conversation.messages) == 2
    conversation.enter("/help")
    for name in ("/clear", "/system", "/mode", "/stats", "/save", "/exit"):
        assert name in out.getvalue()
    conversation.enter("/exit")
    assert conversation.over


def test_mistakes_do_not_end_the_chat(chat, tmp_path):
    conversation, out = chat
    for line, message in [
        ("/dance", "no command /dance"),
        ("/mode fast", "error: "),
        ("/save", "needs a file name"),
        (f"/save {tmp_path}/missing/talk.json", "error: "),
        ("x" * 500, "context of 400"),
    ]:
        out.truncate(0)
        conversation.enter(line)
        assert message in out.getvalue() and not conversation.over
    assert conversation.messages == []
    conversation.enter("still here")
    assert len(conversation.messages) == 2


def test_ctrl_c_stops_the_answer_and_keeps_the_chat(chat, monkeypatch):
    conversation, out = chat
    steps = []
    original = conversation._lm.engine.step

    def step():
        steps.append(1)
        if len(steps) == 6:
            raise KeyboardInterrupt
        return original()

    monkeypatch.setattr(conversation._lm.engine, "step", step)
    conversation.enter("Hello")
    assert "(stopped)" in out.getvalue()
    assert [m["role"] for m in conversation.messages] == ["user", "assistant"]  # what it said so far stays
    conversation.enter("Go on")
    assert len(conversation.messages) == 4


def test_the_terminal_shows_the_answer_once(lm):
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=60)
    events = list(lm.stream("Hello", max_tokens=30))
    result = AnswerView(console).show(iter(events))
    assert result == events[-1].result
    shown = [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]
    expected = [line.rstrip() for line in result.text.splitlines() if line.strip()]
    assert len(shown) == len(expected)


def test_cells_differ_by_more_than_colour():
    line = canvas_text([Cell(None, "masked"), Cell(1, "proposed"), Cell(2, "accepted")], ["", "a\n", "b"])
    assert line.plain == "░a⏎b"
    assert len({str(span.style).split()[0] for span in line.spans}) == 3


def test_history_lies_where_state_belongs(tmp_path):
    assert history_file({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "trifolium" / "chat_history"
    assert history_file({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/trifolium/chat_history"


def test_a_piped_chat_answers_line_by_line(folder):
    done = subprocess.run(
        [sys.executable, "-m", "trifolium", "chat", "--model", str(folder), "--adapter", "none", "--max-tokens", "3"],
        input="Hello\n/mode\n/exit\nnever read\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "mode: verified" in done.stdout and "> " not in done.stdout
    assert "note: this model has no adapter" in done.stderr
