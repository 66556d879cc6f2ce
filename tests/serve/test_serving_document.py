"""docs/serving.md: its examples run against the server, and its tables say what the code does."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from anthropic import Anthropic
from pydantic import BaseModel

from running_server import RunningServer
from trifolium.cli import serve as command
from trifolium.config import MAX_BLOCK, DecodeConfig
from trifolium.serve import ServeSettings, anthropic, chat, completions, responses
from trifolium.serve.fields import TrifoliumOptions
from trifolium.serve.shapes import Passes
from trifolium.serve.streaming import Canvas

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "serving.md").read_text()
WRITTEN_URL = "http://127.0.0.1:8000"
SCHEMA = json.loads((DOCS / "canvas.schema.json").read_text())


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)


def table(mark: str) -> list[list[str]]:
    """The cells of the table below `<!-- mark -->`, without its head."""
    lines = TEXT.split(f"<!-- {mark} -->\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def names(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


# Examples


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.splitlines()[0])
def test_python_examples_run(block: str, server: RunningServer) -> None:
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(block.replace(WRITTEN_URL, server.url), "serving.md", "exec"), names)
    assert len(said.getvalue().strip()) > 3
    for value in names.values():
        if isinstance(value, openai.OpenAI | Anthropic):
            value.close()  # a reader's process ends here; ours would leave its sockets to some later test


@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("CI"), reason="curl isn't installed")
@pytest.mark.parametrize("block", blocks("bash"), ids=lambda block: block.split("\n")[0][-40:])
def test_shell_examples_run(block: str, server: RunningServer, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LLM_USER_PATH": str(tmp_path / "llm"), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.replace(WRITTEN_URL, server.url)],
        env=environment, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    said = done.stdout.decode()
    assert done.returncode == 0 and len(said) > 10, done.stderr.decode()
    assert '"error"' not in said
    if '"drafts": true' in block:
        events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")]
        canvases = [event["trifolium"] for event in events if "trifolium" in event]
        assert canvases and said.endswith("data: [DONE]\n\n")
        for canvas in canvases:
            jsonschema.validate(canvas, SCHEMA)


def test_there_are_examples_for_every_client() -> None:
    assert len(blocks("bash")) >= 4 and len(blocks("python")) >= 3
    assert all(client in TEXT for client in ("from openai import", "from anthropic import", "llm -m", "curl -s"))


def test_pictures_and_files_that_are_named_exist() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TEXT)
    assert len(pictures) >= 3 and all((DOCS / picture).is_file() for picture in pictures)
    for file in re.findall(r"`((?:docs|deploy|tests)/[\w./]+)`", TEXT):
        assert (DOCS.parent / file).exists(), file


# The canvas


def test_the_published_schema_is_the_code_s(http: httpx.Client) -> None:
    again = "curl -s http://127.0.0.1:8000/trifolium/canvas.schema.json | python -m json.tool > docs/canvas.schema.json"
    assert Canvas.model_json_schema() == SCHEMA == http.get("/trifolium/canvas.schema.json").json(), again


def test_the_canvas_that_is_shown_is_valid() -> None:
    [shown] = blocks("json")
    jsonschema.validate(json.loads(shown), SCHEMA)
    assert {cell["state"] for cell in json.loads(shown)["cells"]} == {"masked", "proposed", "pinned"}


# Tables

NO_DEFAULT = {"draft_source": "drafts"} | dict.fromkeys(
    ["drafts", "free_rows", "block_size", "repeats", "thinking_budget"]
)
"""Options whose default isn't DecodeConfig's of the same name."""


def test_endpoints(server: RunningServer) -> None:
    documented = {tuple(names(row[0])[0].split(" ")) for row in table("endpoints")}
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    real = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == real | {("GET", "/"), ("GET", "/openapi.json")}


def test_options() -> None:
    rows = {names(row[0])[0]: row for row in table("options")}
    assert list(rows) == list(TrifoliumOptions.model_fields)
    for name, field in TrifoliumOptions.model_fields.items():
        _, values, default, _ = rows[name]
        kinds = str(field.annotation)
        if "Literal" in kinds:
            assert names(values) == re.findall(r"'(\w+)'", kinds)
        elif "bool" in kinds:
            assert names(values) == ["true", "false"]
        decode = NO_DEFAULT.get(name, name)
        if decode is not None:
            told = DecodeConfig.model_fields[decode].default
            assert default.strip("`") == (json.dumps(told) if not isinstance(told, str) else told), name
    assert rows["block_size"][1] == f"1 to {MAX_BLOCK}"
    assert rows["drafts"][2] == "`false`" and TrifoliumOptions().drafts is False


def test_usage() -> None:
    assert [name for row in table("usage") for name in names(row[0])] == list(Passes.model_fields)


APIS: dict[str, tuple[str, type[BaseModel], dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", chat.ChatBody, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}),
    "completions": ("/v1/completions", completions.CompletionBody, {"prompt": "Hi", "max_tokens": 3}),
    "responses": ("/v1/responses", responses.ResponsesBody, {"input": "Hi", "max_output_tokens": 3}),
    "messages": (
        "/v1/messages", anthropic.MessagesBody, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3},
    ),
}  # fmt: skip
IGNORED_ARE = {"truncation": "auto", "stream_options": {"include_obfuscation": True}}
"""Ignored fields that take only some values; others take anything."""


def fields(api: str, kind: str) -> list[str]:
    return [name for row in table(f"fields: {api}") if kind in row[0] for name in names(row[1])]


@pytest.mark.parametrize("api", APIS)
def test_every_field_is_told_once(api: str) -> None:
    told = [name for kind in ("read", "refused", "ignored") for name in fields(api, kind)]
    assert sorted(told) == sorted(APIS[api][1].model_fields)


def test_token_counts_take_the_lines_that_are_not_for_messages_only() -> None:
    told = [name for row in table("fields: messages") if "only" not in row[0] for name in names(row[1])]
    assert sorted(told) == sorted(anthropic.CountBody.model_fields)


def said(answer: httpx.Response) -> str:
    """The text of an answer of any of the APIs."""
    assert answer.status_code == 200, answer.text
    body = answer.json()
    if "choices" in body:
        choice = body["choices"][0]
        return str(choice["text"] if "text" in choice else choice["message"]["content"])
    return "".join(part["text"] for part in (body["output"][0]["content"] if "output" in body else body["content"]))


@pytest.mark.parametrize("api", [api for api in APIS if api != "completions"])
def test_refused_fields_are_refused_by_name_unless_they_ask_for_nothing(api: str, http: httpx.Client) -> None:
    path, _, body = APIS[api]
    assert fields(api, "refused")
    for name in fields(api, "refused"):
        answers = [http.post(path, json={**body, name: value}) for value in ({"a": 1}, [{"a": 1}], "x", 1)]
        errors = [answer.json()["error"] for answer in answers]
        assert {answer.status_code for answer in answers} == {400}, name
        refusals = [error["message"] for error in errors if "is not supported" in error["message"]]
        assert refusals and all(name in message for message in refusals), name
        said(http.post(path, json={**body, name: None}))


@pytest.mark.parametrize("api", APIS)
def test_ignored_fields_change_no_answer(api: str, http: httpx.Client) -> None:
    path, _, body = APIS[api]
    body = {**body, "temperature": 0}
    plain = said(http.post(path, json=body))
    everything = {name: IGNORED_ARE.get(name, {"any": ["thing", 1]}) for name in fields(api, "ignored")}
    assert everything and said(http.post(path, json={**body, **everything})) == plain
    unknown = http.post(path, json={**body, "never_heard_of": 1})
    assert unknown.status_code == 400 and "never_heard_of" in unknown.text


def test_limits() -> None:
    real = ServeSettings()
    rows = {row[0]: row for row in table("limits")}
    documented = {
        "requests that run or wait": real.max_open,
        "bytes of a request": real.max_body,
        "seconds until its body is there": real.body_timeout,
        "answers of a request (`n`, prompts)": real.max_choices,
        "seconds of an answer": real.timeout,
        "responses that are kept": real.max_stored,
        "models that stay loaded": real.max_models,
        "seconds of draining when the server stops": real.drain,
    }
    assert real.max_tokens is None and rows.keys() == documented.keys() | {"tokens of an answer"}
    for what, value in documented.items():
        assert float(rows[what][1].replace(",", "")) == value, what


def test_options_of_the_command_that_are_named_exist() -> None:
    import typer

    known = {option for param in typer.main.get_command(command.app).params for option in param.opts}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))
    assert len(named) >= 12 and named <= known | {"--help"}


def statuses() -> Iterator[tuple[int, str]]:
    for row in table("statuses"):
        yield int(row[0]), row[1]


def test_statuses_are_those_of_the_code() -> None:
    room = Path(command.__file__).parents[1] / "serve"
    source = "".join(path.read_text() for path in room.glob("*.py"))
    raised = {int(status) for status in re.findall(r"(?:ApiError|__init__)\(\s*(\d{3})\b", source)}
    assert raised - {499} | {405} == {status for status, _ in statuses()}  # 499: nobody is there to see it


def test_metrics(server: RunningServer) -> None:
    documented = {names(row[0])[0]: set(names(row[1])) for row in table("metrics")}
    page = httpx.get(f"{server.url}/metrics").text
    real = {name for name in re.findall(r"^# TYPE (\w+) ", page, re.M) if not name.endswith("_created")}
    assert documented.keys() == real
    for name, labels in re.findall(r"^(\w+?)(?:_bucket|_sum|_count|_created)?\{(.*)\} ", page, re.M):
        told = documented.get(name) or documented[f"{name}_total"]
        assert set(re.findall(r'(\w+)="', labels)) - {"le"} == told, name
