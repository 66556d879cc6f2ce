"""The process of one program: loads it, warms it up, runs its tasks in turn, writes one JSON line for each.

    python -m systems.worker JOB.json OUT.jsonl

Loading and warming up stand outside every time. Nothing else of the benchmark runs meanwhile.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .protocol import Answer, Job, System, Task

MODULES = {
    "trifolium": "ours",
    "llamacpp": "llama_cpp",
    "transformers": "generate",
    "diffusers": "refinement",
}


def main() -> None:
    job = Job.of(json.loads(Path(sys.argv[1]).read_text()))
    module = importlib.import_module(f"systems.{MODULES[job.program]}")
    host = module.Host(job)
    loaded: dict[str, System] = {}
    with Path(sys.argv[2]).open("w") as out:
        for task in job.tasks:
            try:
                if task.variant not in loaded:
                    loaded[task.variant] = host.variant(task.variant)
                record = measure(loaded[task.variant], task, job)
            except Exception as error:
                traceback.print_exc()
                record = {"error": f"{type(error).__name__}: {error}"}
            out.write(json.dumps({"key": task.key, **record}) + "\n")
            out.flush()


def measure(system: System, task: Task, job: Job) -> dict[str, Any]:
    """One task: a short unrelated answer first, then what counts."""
    system.answer([job.warm_up])
    counts = {"theirs": system.template_tokens(job.warm_up_messages), "ours": len(job.warm_up.prompt)}
    facts = {**system.facts, "template_tokens": counts}
    if task.kind != "answers":
        return {"facts": facts, **system.special(task.kind)}
    reset_peak()
    before, started = joules(), time.perf_counter()
    answers: list[Answer] = []
    for i in range(0, len(task.asks), task.at_once):
        answers += system.answer(task.asks[i : i + task.at_once])
    wall, after = time.perf_counter() - started, joules()
    return {
        "facts": facts,
        "at_once": task.at_once,
        "wall": wall,
        "peak_bytes": peak(),
        "joules": None if before is None or after is None else after - before,
        "answers": [rounded(answer) for answer in answers],
    }


def rounded(answer: Answer) -> dict[str, Any]:
    """As JSON, with times to 10 microseconds."""
    return {**asdict(answer), "arrivals": [(round(at, 5), count) for at, count in answer.arrivals]}


def reset_peak() -> None:
    """Let the peak of resident memory start from now on (Linux: proc_pid_clear_refs(5)); elsewhere it is the whole."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak() -> int | None:
    """Largest resident memory since the last reset, in bytes, weights and mapped files included."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def joules(root: Path = Path("/sys/class/powercap")) -> float | None:
    """The packages' energy counters, if this machine has them and lets us read them. They may wrap around in hours."""
    try:
        counters = [int((p / "energy_uj").read_text()) for p in root.glob("intel-rapl:*") if p.name.count(":") == 1]
    except OSError:
        return None
    return sum(counters) / 1e6 if counters else None


if __name__ == "__main__":
    main()
