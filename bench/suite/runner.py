"""Runs turns: starts a program, gives it its tasks, and keeps what it answers. One at a time."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from systems.protocol import Ask, Job, Task

from trifolium.checkpoint import open_checkpoint
from trifolium.text import ChatTemplate, encode_chat

from .journal import Journal
from .machine import python_for
from .matrix import CONTEXT_TOKENS, CONTEXTS, WORKLOADS, Cell, Turn, prompts

BENCH = Path(__file__).parent.parent
WARM_UP = ({"role": "user", "content": "Name a colour, a fruit and a river, and say which of them you like best."},)
PATIENCE = 600.0
"""Seconds after which a turn is given up."""


@dataclass(frozen=True)
class Sizes:
    """What `quick` makes smaller: None leaves all as it is."""

    prompts: int | None = None
    tokens: int | None = None
    contexts: tuple[int, ...] = CONTEXTS
    quick: bool = False


class Asks:
    """Prompts as token ids, encoded once with the model's own tokenizer and template."""

    def __init__(self, model: str, sizes: Sizes) -> None:
        checkpoint = open_checkpoint(model)
        self.path = str(checkpoint.path)
        """Where the weights lie: all systems read this very file."""
        self.name = checkpoint.name
        self.fingerprint = checkpoint.fingerprint()
        self._tokenizer = checkpoint.tokenizer()
        self._template = ChatTemplate.of(self._tokenizer)
        self.sizes = sizes
        self.eos_ids = tuple(sorted(self._tokenizer.eos_ids))
        self.max_positions = checkpoint.config.max_positions
        self.warm_up = Ask("warm-up", self._encode(WARM_UP), min(8, sizes.tokens or 8), ignore_eos=True)

    def _encode(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        return tuple(encode_chat(self._tokenizer, self._template, list(messages)))

    def of(self, cell: Cell) -> tuple[Ask, ...]:
        """The asks of a measurement."""
        if cell.part == "context":
            tokens = min(CONTEXT_TOKENS, self.sizes.tokens or CONTEXT_TOKENS)
            words = [token for prompt in prompts("long") for token in self._encode(prompt.messages)]
            lengths = [n for n in self.sizes.contexts if n + tokens < self.max_positions]
            return tuple(Ask(f"context-{n}", tuple(words[:n]), tokens, ignore_eos=True) for n in lengths)
        workload = next((w for w in WORKLOADS if w.name == cell.part), None)
        if workload is None:
            return ()
        count = cell.load if cell.load > 1 else min(workload.one, self.sizes.prompts or workload.one)
        tokens = min(workload.max_tokens, self.sizes.tokens or workload.max_tokens)
        return tuple(Ask(p.id, self._encode(p.messages), tokens) for p in prompts(cell.part)[:count])


class Runner:
    """Starts programs."""

    def __init__(self, asks: Asks, journal: Journal, *, threads: int, cache: Path, logs: Path) -> None:
        self._asks = asks
        self._journal = journal
        self._threads = threads
        self._cache = cache
        self._logs = logs

    def run(self, turn: Turn, progress: Callable[[str], None]) -> float:
        """Measure what the journal lacks of a turn; seconds it took. `progress` is called with each key as it ends.

        What goes wrong becomes a record with an `error`; it is measured again when the run is.
        """
        started = time.monotonic()
        cells = [cell for cell in turn.cells if not self._journal.done(cell.key)]
        if cells:
            try:
                python = python_for(turn.program, self._cache)
            except subprocess.CalledProcessError as error:
                missing = f"its environment could not be made: {error}"
                for cell in cells:
                    self._journal.add({"key": cell.key, "error": missing})
            else:
                self._process(turn, cells, python, progress)
        return time.monotonic() - started

    def _job(self, turn: Turn, cells: Sequence[Cell]) -> Job:
        tasks = tuple(
            Task(cell.key, cell.system.variant, cell.part if cell.part in ("rows", "overhead") else "answers",  # type: ignore[arg-type]
                 cell.load, self._asks.of(cell))
            for cell in cells
        )  # fmt: skip
        longest = max((len(a.prompt) + a.max_tokens for t in tasks for a in t.asks), default=0)
        positions = min(self._asks.max_positions, -(-max(longest + 32, 256) // 256) * 256)
        return Job(turn.program, self._asks.path, self._threads, turn.load, positions, self._asks.eos_ids,
                   self._asks.warm_up, WARM_UP, tasks, self._asks.sizes.quick)  # fmt: skip

    def _process(self, turn: Turn, cells: Sequence[Cell], python: Path, progress: Callable[[str], None]) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        waiting = {cell.key for cell in cells}
        with tempfile.TemporaryDirectory(prefix="trifolium-bench-") as name:
            job, out = Path(name) / "job.json", Path(name) / "out.jsonl"
            job.write_text(json.dumps(self._job(turn, cells).as_dict()))
            log = self._logs / f"{turn.round}-{turn.load}-{turn.process}{'-lengthy' * turn.lengthy}.log"
            with log.open("wb") as stream:
                command = [str(python), "-m", "systems.worker", str(job), str(out)]
                process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=self._environment())
                try:
                    self._follow(process, out, waiting, progress)
                finally:
                    process.kill()
                    process.wait()
            for key in sorted(waiting):
                self._journal.add({"key": key, "error": f"the process ended with {process.returncode}: see {log}"})
                progress(key)

    def _follow(
        self, process: subprocess.Popen[bytes], out: Path, waiting: set[str], progress: Callable[[str], None]
    ) -> None:
        """Take measurements over as they come, until the process ends."""
        end, taken = time.monotonic() + PATIENCE, 0
        running = True
        while running and time.monotonic() < end:
            try:
                process.wait(timeout=0.2)
                running = False
            except subprocess.TimeoutExpired:
                pass
            text = out.read_text() if out.exists() else ""
            lines = text[: text.rfind("\n") + 1].splitlines()
            for line in lines[taken:]:
                record = json.loads(line)
                self._journal.add(record)
                waiting.discard(record["key"])
                progress(record["key"])
            taken = len(lines)

    def _environment(self) -> dict[str, str]:
        count = str(self._threads)
        path = os.pathsep.join([str(BENCH), str(BENCH.parent / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        )
        return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count,
                "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip
