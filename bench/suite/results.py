"""All measurements of a journal, by cell, and what is compared across systems in the same round."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .journal import Journal
from .matrix import BY_NAME, WORKLOADS, prompts
from .measures import Numbers, agreement, copied, deliveries, median_of, numbers_of, spread_of

Where = tuple[int, str, str]
"""(load, part, system)"""


@dataclass
class Measured:
    """One cell over its rounds."""

    rounds: dict[int, Numbers] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """Of its first round."""

    @property
    def median(self) -> Numbers:
        return median_of(list(self.rounds.values()))

    def spread(self, name: str) -> float:
        return spread_of(list(self.rounds.values()), name)


class Results:
    """What the tables and pictures read."""

    def __init__(self, journal: Journal) -> None:
        self.identity = journal.identity
        self.sessions = journal.sessions
        self.cells: dict[Where, Measured] = {}
        self.contexts: dict[str, list[dict[str, float]]] = {}
        self.prefixes: dict[str, list[float]] = {}
        self.rows: dict[str, list[dict[str, float]]] = {}
        self.overheads: dict[str, dict[str, float]] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.faults: dict[str, str] = {}
        for key, record in sorted(journal.records.items()):
            self._take(key, record)

    def _take(self, key: str, record: Mapping[str, Any]) -> None:
        round, load, part, system = key.split("/")
        if "error" in record:
            self.faults[key] = record["error"]
            return
        self.facts.setdefault(system, record["facts"])
        if part == "rows":
            self.rows[system] = record["rows"]
        elif part == "overhead":
            self.overheads[system] = record["overhead"]
        elif part == "context":
            self.contexts[system] = [at_context(answer) for answer in record["answers"]]
        else:
            if part == "prefix":
                self.prefixes[system] = [1e3 * a["arrivals"][0][0] for a in record["answers"] if a["arrivals"]]
            measured = self.cells.setdefault((int(load), part, system), Measured())
            measured.rounds[int(round)] = numbers_of(record)
            measured.texts = measured.texts or {a["id"]: a["text"] for a in record["answers"]}

    def copied(self, load: int, part: str) -> float | None:
        """How much of the answers stands in the prompts, over all systems of a place: their median."""
        asked = {prompt.id: prompt.messages[-1]["content"] for prompt in prompts(part)}
        shares = [
            share
            for name in self.systems(load, part)
            for id, text in self.cells[load, part, name].texts.items()
            if (share := copied(text, asked[id])) is not None
        ]
        return statistics.median(shares) if shares else None

    def systems(self, load: int, part: str) -> list[str]:
        """Who was measured there, in the matrix's order."""
        return [name for name in BY_NAME if (load, part, name) in self.cells]

    def places(self) -> list[tuple[int, str]]:
        """(load, workload) with measurements, in order."""
        names = [w.name for w in WORKLOADS]
        found = {(load, part) for load, part, _ in self.cells}
        return sorted(found, key=lambda place: (place[0], names.index(place[1])))

    def ratio(self, load: int, part: str, system: str, other: str, name: str) -> float | None:
        """The median, over rounds that both took part in, of one system's figure by the other's."""
        ours, theirs = self.cells.get((load, part, system)), self.cells.get((load, part, other))
        if ours is None or theirs is None:
            return None
        ratios = [
            ours.rounds[n][name] / theirs.rounds[n][name]
            for n in ours.rounds.keys() & theirs.rounds.keys()
            if name in ours.rounds[n] and name in theirs.rounds[n]
        ]
        return statistics.median(ratios) if ratios else None

    def agreement(self, load: int, part: str, system: str) -> tuple[str, float, float] | None:
        """(reference, share of equal texts, share that agrees from the start) against our own `ar`.

        The reference is `ar` in the system's own dtype; for other programs float32, the weights as they are, where
        that was measured, else int4.
        """
        own = f"{system.split('-')[0]}-ar" if BY_NAME[system].ours else ""
        for reference in (own, "float32-ar", "int4-ar"):
            texts = self.cells.get((load, part, reference)) or self.cells.get((1, part, reference))
            if reference and reference != system and texts is not None:
                found = agreement(self.cells[load, part, system].texts, texts.texts)
                return None if found is None else (reference, *found)
            if reference == system:
                return None
        return None


def at_context(answer: Mapping[str, Any]) -> dict[str, float]:
    """Decoding after a prompt of a given length."""
    came = deliveries(answer["arrivals"])
    seconds, tokens = came[-1][0] - came[0][0], sum(n for _, n in came[1:])
    return {
        "context": int(answer["id"].rsplit("-", 1)[1]),
        "ms_per_token": 1e3 * seconds / tokens,
        "ms_per_delivery": 1e3 * seconds / (len(came) - 1),
        "ttft_ms": 1e3 * came[0][0],
    }
