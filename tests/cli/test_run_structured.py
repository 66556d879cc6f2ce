"""`trifolium run` with a schema, a pattern or a grammar; `LM.generate` with a pydantic model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

import trifolium
from tiny_engine import write_folder
from trifolium.cli import main
from trifolium.constrain import regex
from trifolium.errors import ConfigError, ConstraintError

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "colour": {"enum": ["red", "blüe"]}},
    "required": ["ok", "colour"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("structured") / "tiny").path


@pytest.fixture
def run(folder, capsys):
    """(exit code, stdout, stderr) of a command on the tiny model."""

    def call(*arguments: str):
        with pytest.raises(SystemExit) as caught:
            main([*arguments, "--model", str(folder), "--adapter", str(folder / "adapter.safetensors")])
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return call


@pytest.mark.parametrize("mode", ["ar", "verified", "diffusion"])
def test_a_schema_from_a_file_or_the_command_line(run, tmp_path, mode):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    for given in (str(path), json.dumps(SCHEMA)):
        code, out, err = run("run", "Hello", "--schema", given, "--mode", mode)
        assert code == 0 and err == ""
        answer = json.loads(out)
        assert type(answer["ok"]) is bool and answer["colour"] in ("red", "blüe")
    code, out, _ = run("run", "Hello", "--schema", str(path), "--mode", mode, "--json")
    result = json.loads(out)
    assert code == 0 and json.loads(result["text"]).keys() == {"ok", "colour"} and result["finish_reason"] == "stop"


def test_a_pattern_and_a_grammar(run, tmp_path):
    code, out, _ = run("run", "Hello", "--regex", "[0-9]{3}-(a|b)")
    assert code == 0 and len(out.strip()) == 5 and out[3] == "-"
    path = tmp_path / "g.gbnf"
    path.write_text('root ::= "<" [a-c]{3} ">"')
    code, out, _ = run("run", "Hello", "--grammar", str(path))
    assert code == 0 and out[0] == "<" and out.strip()[4] == ">"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--schema", "nowhere.json"], "no such file"),
        (["--schema", "{"], "not JSON"),
        (["--schema", '{"$ref": "#"}'], "without end"),
        (["--regex", "(?=a)"], "look-around"),
        (["--regex", "a", "--schema", "{}"], "one constraint"),
        (["--grammar", "nowhere.lark"], "no such file"),
    ],
)
def test_faults_end_with_one_line(run, options, why):
    code, out, err = run("run", "Hello", *options)
    assert code == 2 and out == "" and why in err and err.count("\n") == 1


class Answer(BaseModel):
    colour: Literal["red", "blüe"]
    count: int = Field(ge=0, le=9)


def test_pydantic_models_come_back(folder):
    lm = trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype="float32")
    result = lm.generate("Hello", schema=Answer)
    assert isinstance(result.parsed, Answer) and result.complete
    assert lm.generate("Hello", schema=SCHEMA, mode="ar").parsed.keys() == {"ok", "colour"}
    assert lm.generate("Hello", constraint=regex("ab?c")).text in ("ac", "abc")
    assert lm.generate("Hello", max_tokens=3).parsed is None
    *_, last = lm.stream("Hello", schema=Answer)
    assert isinstance(last.result.parsed, Answer)
    with pytest.raises(ConfigError, match="schema, regex"):
        lm.generate("Hello", schema=Answer, regex="a")
    with pytest.raises(ConstraintError, match="not complete"):
        _ = lm.generate("Hello", schema=Answer, max_tokens=2).parsed
