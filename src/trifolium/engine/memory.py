"""How much memory states may take, and where a state goes that has to make room."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ..model import RequestState
from ..model.state import Parts

STATE_SHARE = 0.5
"""Share of the memory that is free when an engine starts which its states and cached prefixes may take."""


def available_memory(device: torch.device) -> int:
    """Bytes that could be taken on a device now: for a CPU what the system or the control group has left."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    bounds = [b for b in (_system_memory(), _group_memory()) if b is not None]
    return min(bounds) if bounds else 2**32


def _system_memory() -> int | None:
    """Linux: what the kernel says can be had without swapping (proc_meminfo(5)). Elsewhere: free pages, or all."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    for name in ("SC_AVPHYS_PAGES", "SC_PHYS_PAGES"):
        if name in os.sysconf_names:
            return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")
    return None


def _group_memory() -> int | None:
    """What the control group's limit leaves (Linux, version 2), if it has one."""
    group = Path("/sys/fs/cgroup")
    try:
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return None


@dataclass(frozen=True)
class _Place:
    """A state on disk: how many positions it has, how many it had room for, and which layers hold how many tensors."""

    path: Path
    length: int
    capacity: int
    cells: tuple[int, ...]
    snapshot: tuple[int, ...]


class MovedOut:
    """States of requests that had to make room, in files of a private directory that goes with this object.

    Every committed bit comes back as it was: nothing is computed again.
    """

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._folder: Path | None = None

    def __len__(self) -> int:
        return len(self._places)

    def positions(self, id: int) -> tuple[int, int]:
        """How many positions request `id` has, and for how many it had room."""
        return self._places[id].length, self._places[id].capacity

    def put(self, id: int, state: RequestState) -> None:
        """Write a state to disk and free it. Raises OSError or SafetensorError; the state is then as it was."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="trifolium-states-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        path = self._folder / f"{id}.safetensors"
        cells, snapshot = state.cells(0, state.length), state.snapshot()
        try:
            save_file(_flat("cells", cells) | _flat("snapshot", snapshot), path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        counts = [tuple(map(len, parts)) for parts in (cells, snapshot)]
        self._places[id] = _Place(path, state.length, state.capacity, *counts)
        state.free()

    def take(self, id: int, state: RequestState, capacity: int) -> None:
        """Read a state back, with room for `capacity` positions, and delete its file.

        Raises OSError or SafetensorError.
        """
        place = self._places[id]
        tensors = load_file(place.path)
        cells, snapshot = _nested("cells", place.cells, tensors), _nested("snapshot", place.snapshot, tensors)
        state.reserve(capacity)
        state.load(place.length, [(0, cells)], snapshot)
        self.drop(id)

    def drop(self, id: int) -> None:
        """Delete a state's file."""
        self._places.pop(id).path.unlink(missing_ok=True)


def _flat(kind: str, parts: Parts) -> dict[str, torch.Tensor]:
    return {f"{kind}.{i}.{j}": tensor for i, layer in enumerate(parts) for j, tensor in enumerate(layer)}


def _nested(kind: str, counts: tuple[int, ...], tensors: dict[str, torch.Tensor]) -> Parts:
    return tuple(tuple(tensors[f"{kind}.{i}.{j}"] for j in range(count)) for i, count in enumerate(counts))
