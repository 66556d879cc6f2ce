"""Trifolium beside what else would run the same weights on this machine: speed, latency, memory, growth, agreement.

    python bench/peers.py [--docs docs] [--quick] [--only chat rows] [--systems llamacpp int8-ar] [--loads 1 16]

Every system runs in a process of its own, one at a time, on the same prompts as token ids, greedily, with the same
number of threads; rounds repeat everything in turn. Measurements are kept as they come, so an ended run goes on where
it stopped. Writes benchmarks.md, benchmarks.json and pictures. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from suite import machine, page
from suite.journal import Journal, JournalError, code_of
from suite.matrix import BY_NAME, LOADS, PARTS, SYSTEMS, Choice, Turn, turns_of
from suite.results import Results
from suite.runner import Asks, Runner, Sizes

BENCH = Path(__file__).parent
ROOT = BENCH.parent
QUICK = Sizes(prompts=1, tokens=8, contexts=(64, 128), quick=True)


def main() -> None:
    options = parsed()
    console = Console(stderr=True)
    journal_path = options.out / "journal.jsonl"
    if options.fresh and journal_path.exists():
        shutil.move(journal_path, journal_path.with_name(f"journal-{int(time.time())}.jsonl"))
    try:
        journal = Journal.read(journal_path) if options.report else measure(options, journal_path, console)
    except JournalError as error:
        raise SystemExit(str(error)) from None
    folder = options.docs or options.out
    written = page.write(Results(journal), folder, folder / "pictures")
    console.print(f"{written} and {written.with_suffix('.json').name} are written")


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, help="write the page there instead of into --out")
    parser.add_argument("--out", type=Path, default=BENCH / "out" / "peers", help="the journal's folder")
    parser.add_argument("--model", default="smollm2-135m", help="shelf name; the peers need its GGUF file")
    parser.add_argument("--systems", nargs="+", default=[], help="of: " + ", ".join(s.name for s in SYSTEMS))
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help="of: " + ", ".join(PARTS))
    parser.add_argument("--loads", nargs="+", type=int, choices=LOADS, default=LOADS, help="requests at once")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--rounds", type=int, help="repeats, at most (3; 1 with --quick)")
    parser.add_argument("--minutes", type=float, default=21.0, help="start no turn that would end later")
    parser.add_argument("--all", action="store_true", help="every workload at every load: hours")
    parser.add_argument("--quick", action="store_true", help="one short prompt of each kind: does it run?")
    parser.add_argument("--fresh", action="store_true", help="put an older journal aside")
    parser.add_argument("--report", action="store_true", help="measure nothing: write the page of the journal again")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.systems if name not in BY_NAME]:
        parser.error(f"unknown systems: {', '.join(unknown)} (known: {', '.join(BY_NAME)})")
    options.only = options.only or [part for part in PARTS if not (options.quick and part in ("long", "prefix"))]
    return options


def measure(options: argparse.Namespace, path: Path, console: Console) -> Journal:
    """Fill the journal as far as the time goes."""
    sizes = QUICK if options.quick else Sizes()
    asks = Asks(options.model, sizes)
    identity = {
        "model": asks.name, "fingerprint": asks.fingerprint, "commit": machine.commit_of(ROOT),
        "threads": options.threads, "quick": options.quick,
        "code": code_of(ROOT / "src" / "trifolium", BENCH / "systems", BENCH / "prompts"),
    }  # fmt: skip
    journal = Journal(path, identity)
    journal.start_session(machine.facts(options.threads))
    chosen = [BY_NAME[name] for name in options.systems] or [system for system in SYSTEMS if system.default]
    rounds = options.rounds or (1 if options.quick else 3)
    turns = turns_of(Choice(tuple(chosen), options.only, tuple(options.loads), rounds, options.all))
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "trifolium" / "bench"
    runner = Runner(asks, journal, threads=options.threads, cache=cache, logs=options.out / "logs")
    left_out = walk(turns, runner, journal, options.minutes * 60, console)
    if left_out:
        console.print(f"{left_out} measurements did not fit into {options.minutes:g} minutes: run again to go on")
    return journal


def walk(turns: Sequence[Turn], runner: Runner, journal: Journal, seconds: float, console: Console) -> int:
    """Run the turns that fit; how many measurements are left out.

    A turn's time is guessed from the same turn of the round before; one of the first round starts if any time is left.
    """
    end, took, left_out = time.monotonic() + seconds, dict[tuple[str, int, bool], float](), 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("measuring", total=sum(len(turn.cells) for turn in turns))
        for turn in turns:
            waiting = [cell.key for cell in turn.cells if not journal.done(cell.key)]
            place = (turn.process, turn.load, turn.lengthy)
            progress.advance(bar, len(turn.cells) - len(waiting))
            if not waiting:
                continue
            if time.monotonic() + took.get(place, 0.0) > end:
                left_out += len(waiting)
                continue
            progress.update(bar, description=f"round {turn.round}, {turn.load} at once: {turn.process}")
            spent = runner.run(turn, lambda key: tell(key, journal, progress, bar))
            took[place] = spent
    return left_out


def tell(key: str, journal: Journal, progress: Progress, bar: object) -> None:
    """One measurement has ended."""
    progress.advance(bar)  # type: ignore[arg-type]
    if error := journal.records[key].get("error"):
        progress.console.print(f"[red]{key}[/red]: {error}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
