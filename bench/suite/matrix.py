"""What is measured: systems, workloads, loads, and the turns that they come to.

A turn is one start of one program. Turns of a round go through the programs at one load before the next load comes, so
that whatever the machine does meanwhile falls on all of them; every round repeats the same measurements.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

PROMPTS = Path(__file__).parent.parent / "prompts"
LOADS = (1, 4, 16, 64)
CONTEXTS = (512, 2048, 4096, 7936)
CONTEXT_TOKENS = 24


@dataclass(frozen=True)
class System:
    """Something that answers. `rounds`: repeats at most (None: as many as there are); `loads`: requests at once."""

    name: str
    title: str
    program: str
    variant: str
    loads: tuple[int, ...] = LOADS
    rounds: int | None = None
    default: bool = True

    @property
    def process(self) -> str:
        """Systems of the same name here share a process: the modes of one loaded model. llama.cpp's servers don't."""
        if self.program == "trifolium":
            return f"trifolium-{self.variant.split('-')[0]}"
        return self.name if self.program == "llamacpp" else self.program

    @property
    def ours(self) -> bool:
        return self.program == "trifolium"


SYSTEMS = (
    System("llamacpp", "llama.cpp", "llamacpp", "plain"),
    System("llamacpp-ngram", "llama.cpp, n-gram drafts", "llamacpp", "ngram", (1, 16)),
    System("int4-ar", "Trifolium int4, ar", "trifolium", "int4-ar"),
    System("int4-verified", "Trifolium int4, verified", "trifolium", "int4-verified"),
    System("int4-diffusion", "Trifolium int4, diffusion", "trifolium", "int4-diffusion", (1, 4, 16), 2),
    System("int8-ar", "Trifolium int8, ar", "trifolium", "int8-ar", (1, 16), 2),
    System("int8-verified", "Trifolium int8, verified", "trifolium", "int8-verified", (1, 16), 2),
    System("float32-ar", "Trifolium float32, ar", "trifolium", "float32-ar", (1,), 2),
    System("float32-verified", "Trifolium float32, verified", "trifolium", "float32-verified", (1,), 2),
    System("transformers", "transformers float32", "transformers", "plain", (1, 4, 16), 2),
    System("transformers-lookup", "transformers float32, prompt look-up", "transformers", "lookup", (1,), 2),
    System("diffusers", "diffusers LLaDA2Pipeline, our int8 model", "diffusers", "int8", (1,), 2),
    *(
        System(variant, f"Trifolium {title}", "trifolium", variant, (1,), 2, default=False)
        for variant, title in (
            ("int4-verified-preview", "int4, verified, previews only"),
            ("int4-verified-ngram", "int4, verified, n-grams only"),
            ("bfloat16-ar", "bfloat16, ar"), ("bfloat16-verified", "bfloat16, verified"),
            ("float32-diffusion", "float32, diffusion"),
        )
    ),
)  # fmt: skip
BY_NAME = {system.name: system for system in SYSTEMS}


@dataclass(frozen=True)
class Workload:
    """A file of prompts. `one`: how many of them one request at a time answers; `loads`: at once, by default."""

    name: str
    title: str
    max_tokens: int
    one: int
    loads: tuple[int, ...]
    rounds: int | None = None
    systems: tuple[str, ...] | None = None
    """None: all of them."""


LONG_SYSTEMS = ("llamacpp", "transformers", "int4-ar", "int4-verified")
WORKLOADS = (
    Workload("chat", "short chat", 64, 3, (1, 4, 16, 64)),
    Workload("code", "code", 80, 2, (1, 16)),
    Workload("extract", "copy-heavy extraction", 96, 4, (1, 4, 16)),
    Workload("long", "4k prompt, short answer", 32, 1, (1,), 2, LONG_SYSTEMS),
    Workload("prefix", "one 4k document, four questions", 12, 4, (1,), 1, ("llamacpp", "int4-verified")),
)  # fmt: skip
PARTS = (*(w.name for w in WORKLOADS), "context", "rows", "overhead")
LENGTHY = ("long", "prefix", "context", "rows", "overhead")
"""Parts that have turns of their own, so that the turns of the others come closer together."""
CONTEXT_SYSTEMS = ("llamacpp", "int4-ar", "int4-verified")


@dataclass(frozen=True)
class Cell:
    """One measurement of one system. `part`: a workload, "context", "rows" or "overhead"."""

    round: int
    load: int
    part: str
    system: System

    @property
    def key(self) -> str:
        return f"{self.round}/{self.load}/{self.part}/{self.system.name}"


@dataclass(frozen=True)
class Turn:
    """What one process does between its start and its end."""

    round: int
    load: int
    lengthy: bool
    process: str
    program: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Choice:
    """What was asked for on the command line."""

    systems: tuple[System, ...]
    parts: Collection[str]
    loads: tuple[int, ...]
    rounds: int
    everything: bool = False
    """Every workload at every load with every system that can take it."""


def cells_of(choice: Choice, round: int, load: int) -> list[Cell]:
    """All measurements of one round at one load."""
    cells: list[Cell] = []
    for workload in WORKLOADS:
        if workload.name not in choice.parts or len(prompts(workload.name)) < load:
            continue
        if workload.rounds is not None and round > workload.rounds:
            continue
        if (load not in workload.loads and not choice.everything) or (workload.name == "prefix" and load > 1):
            continue
        cells += [
            Cell(round, load, workload.name, system)
            for system in choice.systems
            if load in system.loads
            and (system.rounds is None or round <= system.rounds)
            and (workload.systems is None or system.name in workload.systems or choice.everything or not system.default)
        ]
    if round == 1:
        extra = {
            "context": (1, CONTEXT_SYSTEMS),
            "rows": (1, ("int4-ar", "int8-ar")),
            "overhead": (64, ("int4-ar", "int4-verified")),
        }
        for part, (at, names) in extra.items():
            if part in choice.parts and load == at:
                cells += [Cell(round, load, part, system) for system in choice.systems if system.name in names]
    return cells


def turns_of(choice: Choice) -> list[Turn]:
    """All turns in order: rounds, what the targets are about before the rest, loads, processes.

    Where time ends a run, what comes last is missing.
    """
    turns: list[Turn] = []
    order = sorted(choice.loads, key=lambda load: (load not in (1, 16), load))
    for round in range(1, choice.rounds + 1):
        for main, load, lengthy in product((True, False), order, (False, True)):
            cells = [
                cell
                for cell in cells_of(choice, round, load)
                if (cell.system.rounds is None) is main and (cell.part in LENGTHY) is lengthy
            ]
            names = list(dict.fromkeys(cell.system.process for cell in cells))
            first = (round - 1) % len(names) if names else 0
            for name in (*names[first:], *names[:first]):
                own = tuple(cell for cell in cells if cell.system.process == name)
                turns.append(Turn(round, load, lengthy, name, own[0].system.program, own))
    return turns


@dataclass(frozen=True)
class Prompt:
    """One line of a prompt file."""

    id: str
    messages: tuple[dict[str, str], ...]
    expected: str | None = field(default=None)
    """What a perfect copy would be, where the answer is known."""


def prompts(name: str) -> Sequence[Prompt]:
    """The prompts of a workload, in order."""
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (PROMPTS / f"{name}.jsonl").read_text("utf-8").splitlines()
    ]
    return [Prompt(line["id"], tuple(line["messages"]), line.get("expected")) for line in lines]
