"""Two real replicas behind Ray Serve."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import httpx
import pytest

import trifolium

QUESTIONS = [f"What is {i} plus {i}?" for i in range(8)]

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray isn't installed")


def test_two_replicas_give_the_answers_of_one():
    command = [sys.executable, "-m", "trifolium", "serve", "--model", "nano", "--replicas", "2", "--port", "0"]
    command += ["--max-open", "8"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "RAY_DEDUP_LOGS": "1"})
    assert process.stderr is not None
    try:
        url = None
        for line in process.stderr:
            if match := re.search(r"Trifolium: (http://[\d.]+:\d+)", line):
                url = match[1]
                break
        assert url is not None, "the replicas did not start"
        lm = trifolium.load("nano", progress=False)
        expected = [lm.generate(question, max_tokens=16).text for question in QUESTIONS]

        def ask(question: str) -> str:
            body = {"messages": [{"role": "user", "content": question}], "max_tokens": 16, "temperature": 0}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
            return str(answer.json()["choices"][0]["message"]["content"])

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(ask, QUESTIONS)) == expected
        seen = {httpx.get(f"{url}/health", timeout=30).json()["replica"] for _ in range(40)}
        assert len(seen) == 2
        body = {"messages": [{"role": "user", "content": QUESTIONS[0]}], "max_tokens": 16, "temperature": 0}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json={**body, "stream": True}, timeout=60) as stream:
            text = "".join(stream.iter_text())
        assert text.count("data: ") > 5 and text.endswith("data: [DONE]\n\n")
        assert "drafts" not in text
        refused = httpx.post(f"{url}/v1/chat/completions", json={**body, "nonsense": 1}, timeout=30)
        assert refused.status_code == 400 and "nonsense" in refused.text

        def insist(_: int) -> httpx.Response:
            long = {**body, "max_tokens": 200, "ignore_eos": True}
            return httpx.post(f"{url}/v1/chat/completions", json=long, timeout=120)

        with ThreadPoolExecutor(40) as pool:
            answers = list(pool.map(insist, range(40)))
        assert {answer.status_code for answer in answers} == {200, 429}, "too many are told, not kept waiting"
        assert all("retry-after" in answer.headers for answer in answers if answer.status_code == 429)
        open_one = {**body, "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=open_one, timeout=60) as stream:
            lines = stream.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]", "an open answer may end"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
