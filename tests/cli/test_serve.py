"""`trifolium serve` as people run it: in a process of its own, stopped by signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import trifolium
from running_server import event_of
from tiny_engine import write_folder
from trifolium import cli

ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello there"}],
    "temperature": 0,
    "ignore_eos": True,
    "stream": True,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("serve_command") / "tiny", max_positions=9000).path


@contextmanager
def serving(folder: Path, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running command and its URL, which it prints on stderr."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import trifolium.cli as c; c.main()"
    )
    command = [sys.executable, "-W", "error", "-c", code, "serve", "--model", str(folder), "--port", "0", *options]
    command += ["--adapter", str(folder / "adapter.safetensors"), "--dtype", "int8"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    assert process.stderr is not None
    try:
        seen = []
        for line in process.stderr:
            seen.append(line)
            if match := re.fullmatch(r"Trifolium: (http://\S+:\d+)/ \(API: /v1\)\n", line):
                yield process, match[1]
                break
        else:
            pytest.fail("it ended: " + "".join(seen))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_terminated_server_finishes_its_open_stream(folder):
    lm = trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype="int8")
    with serving(folder) as (process, url):
        with httpx.stream("POST", f"{url}/v1/chat/completions", json={**ASKED, "max_tokens": 400}) as response:
            lines = response.iter_lines()
            text = next(line for line in lines if "content" in line) and ""
            process.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert rest[-2] == "data: [DONE]" or rest[-1] == "data: [DONE]"
        for event in filter(None, map(event_of, rest)):
            text += event["choices"][0]["delta"].get("content", "")
        assert text == lm.generate("Hello there", max_tokens=400, ignore_eos=True).text
        assert process.wait(20) == -signal.SIGTERM, "what a supervisor takes for a stop as asked"
        assert process.stderr is not None
        logged = [json.loads(line) for line in process.stderr]
        assert [(line["path"], line["status"]) for line in logged] == [("/v1/chat/completions", 200)]
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_ctrl_c_twice_waits_for_nobody(folder):
    with serving(folder) as (process, url):
        body = {**ASKED, "max_tokens": 8500}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            assert next(line for line in lines if "content" in line)
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                time.sleep(0.3)
            with suppress(httpx.TransportError):
                assert not any(line == "data: [DONE]" for line in lines)
        assert process.wait(5) == 130
        assert process.stderr is not None and "terminate" not in process.stderr.read()


def test_ctrl_c_with_a_short_drain_and_nothing_private_in_the_log(folder):
    with serving(folder, "--drain", "0.3", TRIFOLIUM_API_KEY="open-sesame") as (process, url):
        body = {**ASKED, "max_tokens": 8000}
        assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 401
        key = {"Authorization": "Bearer open-sesame"}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, headers=key) as response:
            lines = response.iter_lines()
            assert next(line for line in lines if "content" in line)
            process.send_signal(signal.SIGINT)
            events = list(filter(None, map(event_of, lines)))
        assert events[-1]["error"]["code"] == "shutting_down", "the drain was too short, and the client is told"
        assert process.wait(20) == 130
        assert process.stderr is not None
        log = process.stderr.read()
        assert [json.loads(line)["status"] for line in log.splitlines()] == [401, 200]
        assert "open-sesame" not in log and "Hello there" not in log


def test_a_port_in_use_is_one_clear_line(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as caught:
        port = taken.getsockname()[1]
        cli.main(["serve", "--model", str(folder), "--adapter", "none", "--port", str(port), "--quiet"])
    assert caught.value.code == 2
    assert f"can't listen on 127.0.0.1, port {port}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["serve", "--model", str(folder), "--port", "70000"])


def test_serving_other_machines_without_a_key_is_warned_of(folder, capsys):
    with socket.create_server(("0.0.0.0", 0)) as taken, pytest.raises(SystemExit):
        port = str(taken.getsockname()[1])
        cli.main(["serve", "--model", str(folder), "--adapter", "none", "--host", "0.0.0.0", "--port", port])
    assert "anyone who can reach 0.0.0.0 can use this server" in capsys.readouterr().err
