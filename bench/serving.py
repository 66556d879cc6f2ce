"""What HTTP costs: tokens a second through the server, whole and streamed, beside the engine without a server.

    python bench/serving.py [--model smollm2-135m] [--tokens 128] [--at-once 1 16]

Client, server and model share this machine's cores, as they do on a laptop. Prints Markdown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from served import served

import trifolium


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--modes", nargs="+", default=["ar", "verified"])
    options = parser.parse_args()
    cases = [(count, mode) for count in options.at_once for mode in options.modes]
    found: dict[tuple[int, str], list[float]] = {case: [] for case in cases}
    without_server(options, found)
    with served(options.model) as url, ThreadPoolExecutor(max(options.at_once)) as pool:
        for case in cases:
            for stream in (False, True):

                def ask(count: int, mode: str = case[1], stream: bool = stream) -> None:
                    list(pool.map(lambda i: request(url, body(options, i, mode, stream)), range(count)))

                found[case].append(rate(options.tokens, case[0], ask))
    print("| requests at once | mode | engine, tok/s | server, whole | server, streamed |")
    print("| --- | --- | --- | --- | --- |")
    for (count, mode), rates in found.items():
        print(f"| {count} | {mode} | " + " | ".join(f"{value:.0f}" for value in rates) + " |")


def without_server(options: argparse.Namespace, found: dict[tuple[int, str], list[float]]) -> None:
    """Add the engine's own rates."""
    lm = trifolium.load(options.model, progress=False)
    for (count, mode), rates in found.items():

        def ask(count: int, mode: str = mode) -> None:
            engine(lm, options, count, mode)

        rates.append(rate(options.tokens, count, ask))


def rate(tokens: int, count: int, ask: Callable[[int], None]) -> float:
    """Tokens a second of all answers together, the better of two runs; a short one before warms up."""
    ask(1)
    best = 0.0
    for _ in range(2):
        started = time.perf_counter()
        ask(count)
        best = max(best, tokens * count / (time.perf_counter() - started))
    return best


def question(number: int) -> str:
    """Prompts that differ."""
    return f"Explain photosynthesis. (Version {number})"


def engine(lm: trifolium.LM, options: argparse.Namespace, count: int, mode: str) -> None:
    """Answers without a server."""
    for i in range(count):
        lm.submit(question(i), max_tokens=options.tokens, ignore_eos=True, mode=mode)
    while lm.engine.step():
        pass


def body(options: argparse.Namespace, number: int, mode: str, stream: bool) -> dict[str, Any]:
    """The same request over HTTP."""
    return {
        "messages": [{"role": "user", "content": question(number)}],
        "max_tokens": options.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": stream,
        "trifolium": {"mode": mode},
    }


def request(url: str, asked: dict[str, Any]) -> None:
    """One answer, read to its end."""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=asked, timeout=300) as response:
        response.raise_for_status()
        for _ in response.iter_lines():
            pass


if __name__ == "__main__":
    main()
