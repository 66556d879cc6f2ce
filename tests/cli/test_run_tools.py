"""`trifolium run` with tools, a budget for thinking and an end to circles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiny_engine import write_folder
from trifolium.cli import main

TOOLS = [
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "name": "pick", "parameters": {"properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("run_tools") / "tiny", max_positions=2000).path


@pytest.fixture
def tools(tmp_path: Path) -> str:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(TOOLS))
    return str(path)


@pytest.fixture
def run(folder, capsys):
    """(exit code, stdout, stderr) of a command on the tiny model."""

    def call(*arguments: str):
        adapter = str(folder / "adapter.safetensors")
        with pytest.raises(SystemExit) as caught:
            main(["run", "Hello", *arguments, "--model", str(folder), "--adapter", adapter])
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return call


def test_calls_are_told_apart_in_json(run, tools):
    code, out, _ = run("--tools", tools, "--tool-choice", "pick", "--json")
    told = json.loads(out)
    assert code == 0 and told["finish_reason"] == "tool_calls" and told["content"] == ""
    [call] = told["tool_calls"]
    assert call["name"] == "pick" and call["arguments"]["x"] in (1, 2)
    code, out, _ = run("--tools", tools, "--tool-choice", "pick")
    assert code == 0 and out.startswith('<tool_call>\n{"name": "pick", "arguments": {"x": ')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tools", "nowhere.json"], "no such file"),
        (["--tool-choice", "required"], "--tools"),
        (["--tools", "{tools}", "--tool-choice", "rm"], "not among"),
        (["--tools", "{tools}", "--regex", "a"], "no other constraint"),
        (["--tools", "{broken}"], "not JSON"),
        (["--tools", "{object}"], "JSON list"),
        (["--repeats", "1"], "2"),
        (["--thinking-budget", "-1"], "0"),
    ],
)
def test_bad_tools_get_one_line(run, tools, tmp_path, arguments, message):
    (tmp_path / "broken").write_text("[")
    (tmp_path / "object").write_text("{}")
    paths = {"tools": tools, "broken": str(tmp_path / "broken"), "object": str(tmp_path / "object")}
    code, out, err = run(*(word.format(**paths) if word.startswith("{") else word for word in arguments))
    assert code == 2 and out == "" and message in err


def test_circles_are_ended(run):
    code, out, _ = run("--regex", "(ab){200}", "--repeats", "3", "--max-tokens", "400", "--json")
    told = json.loads(out)
    assert code == 0 and told["finish_reason"] == "repetition" and told["text"] == "ab" * 32
