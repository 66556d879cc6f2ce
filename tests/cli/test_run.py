"""`trifolium run`: text for pipes, JSON for scripts, errors for typing mistakes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tiny_engine import write_folder
from trifolium.cli import main

KEYS = [
    *("text", "token_ids", "prompt_tokens", "cached_tokens", "tokens", "passes", "tokens_per_pass", "seconds"),
    *(
        "tokens_per_second",
        "prompt_passes",
        "prompt_seconds",
        "load_seconds",
        "accepted_by",
        "experts_per_pass",
        "finish_reason",
    ),
    *("mode", "drafts", "model", "dtype"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("run") / "tiny").path


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """(exit code, stdout, stderr) of a command on the tiny model."""

    def call(*arguments: str, stdin: str | None = None, adapter: bool = True):
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        options = ["--model", str(folder), "--adapter", str(folder / "adapter.safetensors") if adapter else "none"]
        with pytest.raises(SystemExit) as caught:
            main([*arguments, *options])
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return call


def test_json_holds_exactly_the_documented_keys(run):
    code, out, err = run("run", "Hello", "--max-tokens", "9", "--json")
    answer = json.loads(out)
    assert code == 0 and err == "" and list(answer) == KEYS
    assert answer["tokens"] == len(answer["token_ids"]) <= 9
    assert set(answer["accepted_by"]) == {"preview", "ngram"}
    assert answer["mode"] == "verified" and answer["model"] == "tiny"


def test_a_pipe_gets_the_text_alone(run):
    _, out, _ = run("run", "Hello", "--max-tokens", "9", "--json")
    assert run("run", "Hello", "--max-tokens", "9") == (0, json.loads(out)["text"] + "\n", "")
    assert run("run", "-", "--max-tokens", "9", stdin="Hello")[1] == json.loads(out)["text"] + "\n"
    assert run("run", "--max-tokens", "9", stdin="Hello")[1] == json.loads(out)["text"] + "\n"


def test_sampled_modes_agree_through_the_command_line(run):
    options = ["--max-tokens", "20", "--temperature", "0.8", "--seed", "5", "--top-p", "0.9", "--json"]
    answers = [json.loads(run("run", "Hello", "--mode", mode, *options)[1]) for mode in ("ar", "verified")]
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    other = json.loads(run("run", "Hello", *options[:4], "--seed", "6", "--json")[1])
    assert other["token_ids"] != answers[0]["token_ids"]


def test_without_an_adapter_it_says_so(run):
    code, out, err = run("run", "Hello", "--max-tokens", "5", "--json", adapter=False)
    assert code == 0 and json.loads(out)["drafts"] == "ngram"
    assert err.startswith("note: this model has no adapter")
    code, out, err = run("run", "Hello", "--mode", "diffusion", adapter=False)
    assert (code, out) == (2, "") and "diffusion needs an adapter" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([""], "the prompt is empty"),
        (["hi", "--mode", "fast"], "mode"),
        (["hi", "--max-tokens", "0"], "max_tokens"),
        (["hi", "--threshold", "1.5"], "threshold"),
        (["hi", "--temperature", "-1"], "temperature"),
        (["hi", "--dtype", "int3"], "unknown dtype"),
        (["hi", "--block-size", "0"], "block_size"),
        (["hi", "--stop", ""], "stop"),
        (["x" * 500], "context of 400"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(run, arguments, message):
    code, out, err = run("run", *arguments)
    assert (code, out) == (2, "") and err.startswith("error: ") and message in err and err.count("\n") == 1


def test_bench_compares_the_modes(run, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        '{"messages": [{"role": "user", "content": "Hi"}]}\n\n{"messages": [{"role": "user", "content": "Ho"}]}\n'
    )
    code, out, _ = run("bench", "--prompts", str(prompts), "--max-tokens", "8", "--json")
    report = json.loads(out)
    assert code == 0 and list(report["modes"]) == ["ar", "verified", "diffusion"]
    totals = [*KEYS[2:], "peak_memory_mb"]
    assert list(report["modes"]["ar"]) == totals
    assert list(report["modes"]["verified"]) == [*totals, "equal_to_ar"]
    assert report["modes"]["verified"]["equal_to_ar"] == 1.0
    assert report["modes"]["ar"]["tokens_per_pass"] == pytest.approx(1.0, abs=0.2)
    assert all(mode["peak_memory_mb"] > 50 for mode in report["modes"].values())
    code, out, _ = run("bench", "--prompts", str(prompts), "--max-tokens", "4", "--modes", "ar")
    assert code == 0 and "tokens/pass" in out and "verified" not in out


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "can't read"), ("", "no prompts"), ('{"messages": []}\nnonsense\n', "line 2"), ("[1]", "line 1")],
)
def test_bad_prompt_files(run, tmp_path, content, message):
    path = tmp_path / "prompts.jsonl"
    if content is not None:
        path.write_text(content)
    code, _, err = run("bench", "--prompts", str(path))
    assert code == 2 and message in err


def test_bench_compares_dtypes(run):
    code, out, _ = run("bench", "--dtypes", "int8", "--limit", "2", "--max-tokens", "6", "--json")
    report = json.loads(out)
    assert code == 0 and [each["dtype"] for each in report["dtypes"]] == ["float32", "int8"]
    assert report["dtypes"][0]["kl_mean"] == 0 < report["dtypes"][1]["kl_mean"]
    code, out, _ = run("bench", "--dtypes", "int8", "--limit", "1", "--max-tokens", "4")
    assert code == 0 and out.startswith("| products | KL") and out.count("\n") == 4
    assert run("bench", "--dtypes", "int3")[0] == 2


def test_bench_refuses_unknown_modes(run):
    assert run("bench", "--modes", "ar,magic")[0] == 2
    assert run("bench", "--modes", "ar,ar")[0] == 2


def test_the_row_budget_of_the_commands_is_the_engines() -> None:
    from trifolium.cli import options
    from trifolium.engine import MAX_ROWS

    assert options.ROWS == MAX_ROWS
