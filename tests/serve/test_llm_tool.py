"""The `llm` command-line tool, told of the server as its manual says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def home(server, tmp_path: Path) -> Path:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: here\n  model_name: tiny\n  api_base: {server.url}/v1\n"
        f"- model_id: here-completion\n  model_name: tiny\n  api_base: {server.url}/v1\n  completion: true\n"
    )
    return tmp_path


def ask(home: Path, *arguments: str) -> str:
    environment = {**os.environ, "LLM_USER_PATH": str(home), "PYTHONWARNINGS": "ignore", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().removesuffix("\n")


def test_it_streams(home, lm):
    options = ("-o", "temperature", "0", "-o", "max_tokens", "25")
    alone = lm.generate("Hello there", system="Be brief", max_tokens=25).text
    assert ask(home, "-m", "here", "-s", "Be brief", *options, "Hello there") == alone


def test_completions_at_once(home, lm):
    options = ("-o", "temperature", "0", "-o", "max_tokens", "9")
    alone = lm.generate(lm.tokenizer.encode("abc", special=False), max_tokens=9).text
    assert ask(home, "-m", "here-completion", "--no-stream", *options, "abc") == alone
