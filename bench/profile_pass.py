"""Where a pass's time goes, by perf: products, attention, proposals, and everything else.

    python bench/profile_pass.py [--mode verified] [--model smollm2-135m] [--tokens 96]

Samples the thread that runs the passes while it answers a few chat prompts, one at a time, after loading. Needs `perf`
(Debian: linux-perf) and the native kernels. Prints a table of shares; the issue's target is at most 20 % outside
matrix products and attention.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

PROMPTS = Path(__file__).parent / "prompts" / "chat.jsonl"
KINDS = (
    ("products", r"Int[48]::tile|Float::tile|BFloat16::tile|tile<"),
    ("attention", r"Attend"),
    ("norms, rope, activations, row formats", r"DensePass|trifolium::|kernels-"),
    ("waiting for the other thread", r"libgomp|sched_yield|__schedule"),
    ("Python", r"libpython|python3"),
    ("torch and numpy", r"libtorch|libc10|multiarray|mkl|dnnl"),
    ("system", r"kernel|\[k\]|libc\.so|ld-linux"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="verified", choices=("ar", "verified", "diffusion"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inner:
        answer(options)
        return
    perf = shutil.which("perf")
    if perf is None:
        raise SystemExit("this needs perf: apt-get install linux-perf")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "perf.data"
        command = [sys.executable, __file__, "--inner", "--mode", options.mode, "--model", options.model]
        process = subprocess.Popen([*command, "--tokens", str(options.tokens)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()  # loaded and warm
        recording = subprocess.Popen(
            [perf, "record", "-q", "-F", "999", "-t", str(process.pid), "-o", str(data)], stderr=subprocess.DEVNULL
        )
        rate = process.stdout.read().strip()
        process.wait()
        recording.send_signal(signal.SIGINT)
        recording.wait()
        report = subprocess.run(
            [perf, "report", "-i", str(data), "--stdio", "-q", "-t", "|", "-F", "overhead,dso,sym"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
    print(table(report, f"{options.model}, {options.mode}: {rate}"))


def answer(options: argparse.Namespace) -> None:
    """The process that is watched: load, warm up, say so, answer."""
    import trifolium

    lm = trifolium.load(options.model, progress=False)
    prompts = [json.loads(line)["messages"] for line in PROMPTS.read_text("utf-8").splitlines()[:12]]
    settings = {"mode": options.mode, "max_tokens": options.tokens, "ignore_eos": True}
    lm.generate(prompts[0], **settings)
    print("ready", flush=True)
    time.sleep(1)
    results = [lm.generate(prompt, **settings) for prompt in prompts[1:]]
    passes, seconds = sum(r.passes for r in results), sum(r.seconds for r in results)
    print(f"{sum(r.tokens for r in results) / seconds:.0f} tokens a second, {1e3 * seconds / passes:.1f} ms a pass")


def table(report: str, title: str) -> str:
    """Shares by kind, in Markdown."""
    shares: Counter[str] = Counter()
    for line in report.splitlines():
        if match := re.match(r"\s*([\d.]+)%\s*\|(.*)", line):
            kind = next((name for name, words in KINDS if re.search(words, match[2])), "other")
            shares[kind] += float(match[1])
    rows = [f"| {name} | {share:.1f} % |" for name, share in shares.most_common()]
    rest = 100 - shares["products"] - shares["attention"] - shares["waiting for the other thread"]
    last = f"Outside products, attention and waiting for the other thread: {rest:.0f} %."
    return "\n".join([title, "", "| what | share of the pass thread's time |", "| --- | --- |", *rows, "", last])


if __name__ == "__main__":
    main()
