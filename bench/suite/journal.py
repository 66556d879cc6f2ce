"""What has been measured so far: a file of JSON lines, appended to after every measurement, so that a run can go on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class JournalError(RuntimeError):
    """The journal can't be gone on with."""


class Journal:
    """The first line says of what code and settings the rest is; measurements of others don't go into the same file."""

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self.identity: dict[str, Any] = {}
        self.records: dict[str, Record] = {}
        self.sessions: list[Record] = []
        if path.exists():
            self._read()
            if self.identity != dict(identity):
                differing = sorted(k for k in {*self.identity, *identity} if self.identity.get(k) != identity.get(k))
                raise JournalError(
                    f"{path} was measured with other {', '.join(differing)}: start anew with --fresh, choose another "
                    "--out, or add --report to use it as it is"
                )
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.identity = dict(identity)
            self._append({"identity": self.identity})

    @classmethod
    def read(cls, path: Path) -> Journal:
        """A journal as it is, whatever it was measured with. Raises JournalError if there is none."""
        if not path.exists():
            raise JournalError(f"{path} does not exist: nothing has been measured yet")
        journal = cls.__new__(cls)
        journal._path, journal.identity, journal.records, journal.sessions = path, {}, {}, []
        journal._read()
        return journal

    def _read(self) -> None:
        for line in self._path.read_text("utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # cut short when a run was ended; it will be measured again
            if "identity" in record:
                self.identity = record["identity"]
            elif "session" in record:
                self.sessions.append(record["session"])
            else:
                self.records[record["key"]] = record

    def start_session(self, facts: Mapping[str, Any]) -> None:
        """Note that a run begins: when and on what machine."""
        self.sessions.append(dict(facts))
        self._append({"session": dict(facts)})

    def add(self, record: Record) -> None:
        """Keep a measurement."""
        self.records[record["key"]] = record
        self._append(record)

    def done(self, key: str) -> bool:
        """Whether this has been measured without an error."""
        return key in self.records and "error" not in self.records[key]

    def _append(self, record: Record) -> None:
        text = _last_byte(self._path)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(("\n" if text not in (b"", b"\n") else "") + json.dumps(record) + "\n")


def code_of(*folders: Path) -> str:
    """A short hash of all Python and C++ sources below the folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.suffix in (".py", ".cpp", ".h", ".jsonl")):
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _last_byte(path: Path) -> bytes:
    if not path.exists() or path.stat().st_size == 0:
        return b""
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1)
