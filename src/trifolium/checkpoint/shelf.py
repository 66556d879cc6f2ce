"""The shelf: named models, where they come from, and the cache that keeps them.

A model lies in `<cache>/models/<name>/` together with a manifest of its files' sizes and hashes. The folder appears by
a rename, when everything in it has been checked, so there is never half a model under its name.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import Field, ValidationError

from ..config import Frozen
from ..errors import ConfigError, DownloadError, NotFoundError, TrifoliumError, UsageError
from .sources import Installed, PackageSource, Source, describe, fetch, sha256_of

DEFAULT_MODEL = "smollm2-135m"
_MANIFEST = ".trifolium.json"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


class ShelfEntry(Frozen):
    """A named model. `fingerprint` is its files' identity (Checkpoint.base_fingerprint).

    `adapter` and `skills` are files in trifolium/adapters; skills are merged into the weights whenever the model is
    opened by this name. `files_of` names another model whose files are this one's, too, in place of sources: so a model
    with skills and the plain one beside it are fetched and kept once.
    """

    name: str
    title: str
    description: str
    licence: str
    fingerprint: str | None = None
    adapter: str | None = None
    skills: str | None = None
    files_of: str | None = None
    sources: tuple[Source, ...] = Field(min_length=1)

    def packaged(self) -> PackageSource | None:
        """The source inside the installed package, if the model ships with it."""
        return next((s for s in self.sources if isinstance(s, PackageSource) and s.path.is_dir()), None)


class Shelf:
    """Named models and their cache folder."""

    def __init__(self, entries: Mapping[str, ShelfEntry], cache: Path) -> None:
        self.entries = dict(entries)
        self.folder = cache / "models"

    @classmethod
    def load(cls, text: str, cache: Path) -> Shelf:
        """A shelf from TOML (`[models.NAME]` tables; see shelf.toml). Raises ConfigError."""
        try:
            tables = tomllib.loads(text).get("models", {})
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"the shelf is not valid TOML: {error}") from None
        if bad := [name for name in tables if not _NAME.fullmatch(name)]:
            raise ConfigError(f"the shelf has bad model names: {', '.join(bad)}")
        entries = {
            name: ShelfEntry.parse({"name": name, **_files(tables, name)}, f"shelf entry {name}") for name in tables
        }
        return cls(entries, cache)

    @classmethod
    def default(cls) -> Shelf:
        """The shelf that ships with the package, with the user's cache folder."""
        text = resources.files("trifolium.checkpoint").joinpath("shelf.toml").read_text("utf-8")
        return cls.load(text, cache_folder(os.environ))

    def find(self, name: str) -> ShelfEntry:
        """The entry called `name`. Raises NotFoundError with the nearest names."""
        if name not in self.entries:
            raise NotFoundError(f"the shelf has no model {name!r}; nearest: {', '.join(self.nearest(name))}")
        return self.entries[name]

    def keeper(self, name: str) -> ShelfEntry:
        """The entry under whose name the files of `name` are kept: its own, but for `files_of`."""
        entry = self.find(name)
        return entry if entry.files_of is None else self.entries[entry.files_of]

    def nearest(self, name: str) -> list[str]:
        """Up to three names like `name`, or simply the first ones."""
        return difflib.get_close_matches(name.lower(), self.entries, n=3, cutoff=0.4) or sorted(self.entries)[:3]

    def installed(self, name: str) -> Installed | None:
        """The manifest of a model that is here with all files at their sizes; None when it isn't, or is damaged."""
        keeper = self.keeper(name)
        if (source := keeper.packaged()) is not None:
            return describe(source, source.path)
        folder = self.folder / keeper.name
        try:
            manifest = Installed.model_validate_json((folder / _MANIFEST).read_bytes())
            intact = all((folder / file).stat().st_size == known.bytes for file, known in manifest.files.items())
        except (OSError, ValidationError):
            return None
        return manifest if intact and manifest.path in {".", *manifest.files} else None

    def installed_path(self, name: str) -> Path | None:
        """What to open for a model that is here: a .gguf file or a HF folder. None when it must be pulled first."""
        if (source := self.find(name).packaged()) is not None:
            return source.path
        manifest = self.installed(name)
        return None if manifest is None else self.folder / self.keeper(name).name / manifest.path

    def verify(self, name: str) -> bool:
        """Whether the model is here and every file still has its hash. Reads everything.

        A model that ships inside the package is as intact as the package.
        """
        if self.find(name).packaged() is not None:
            return True
        manifest = self.installed(name)
        folder = self.folder / self.keeper(name).name
        return manifest is not None and all(
            sha256_of(folder / file) == known.sha256 for file, known in manifest.files.items()
        )

    def pull(self, name: str, progress: bool = True, *, verify: bool = False) -> Path:
        """Make sure that the model is here and return its path; sources are tried in order.

        Needs no network, lock or write when an intact copy is here. `verify` checks hashes, not only sizes. Safe to
        call from many processes at once. Raises NotFoundError, or DownloadError that lists what each source said.
        """
        if path := self._intact(name, verify):
            return path
        entry = self.keeper(name)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f".{entry.name}.lock"):
                # Another process may have fetched it while this one waited.
                return self._intact(name, verify) or self._fetch(entry, progress)
        except OSError as error:
            raise DownloadError(f"can't keep {name} in {self.folder}: {error}") from None

    def remove(self, name: str) -> bool:
        """Delete the model and unfinished downloads of it from the cache; False when nothing was there.

        Raises UsageError for a model that is part of the package, or whose files are another's.
        """
        entry = self.find(name)
        if entry.files_of is not None:
            raise UsageError(f"the files of {name} are those of {entry.files_of}; remove that one, and both are gone")
        if entry.packaged() is not None:
            raise UsageError(f"{name} is part of the trifolium package; there is nothing to remove from the cache")
        if not self.folder.is_dir():
            return False
        with FileLock(self.folder / f".{name}.lock"):
            stages = [self._stage(name, source.kind) for source in entry.sources]
            found = [path for path in (self.folder / name, *stages) if path.exists()]
            for path in found:
                shutil.rmtree(path)
        return bool(found)

    def adapter_path(self, name: str) -> Path | None:
        """The adapter that ships for this model, if the package has it."""
        adapter = self.find(name).adapter
        path = _packaged(adapter) if adapter else None
        return path if path and path.is_file() else None

    def skills_path(self, name: str) -> Path | None:
        """The skills that this model has by default. Raises NotFoundError if the package lacks them.

        Without them it would be another model, and not say so.
        """
        skills = self.find(name).skills
        if skills is not None and not _packaged(skills).is_file():
            raise NotFoundError(f"the skills of {name} are missing: {_packaged(skills)}; install trifolium again")
        return None if skills is None else _packaged(skills)

    def _intact(self, name: str, verify: bool) -> Path | None:
        path = self.installed_path(name)
        return path if path and (not verify or self.verify(name)) else None

    def _fetch(self, entry: ShelfEntry, progress: bool) -> Path:
        faults: list[str] = []
        for source in entry.sources:
            stage = self._stage(entry.name, source.kind)
            try:
                manifest = fetch(source, stage, entry.name, progress)
                _check_identity(entry, stage / manifest.path)
                (stage / _MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")
            except (TrifoliumError, OSError) as error:
                faults.append(f"{source}: {error}")
                continue
            final = self.folder / entry.name
            # A damaged copy makes room only now, when its replacement is complete.
            shutil.rmtree(final, ignore_errors=True)
            stage.rename(final)
            return final / manifest.path
        raise DownloadError(f"no source could deliver {entry.name}:\n  " + "\n  ".join(faults))

    def _stage(self, name: str, kind: str) -> Path:
        return self.folder / f".{name}.{kind}"


def _files(tables: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """An entry's table; one that names another model's files gets that one's sources and fingerprint."""
    table = dict(tables[name])
    if (of := table.get("files_of")) is not None:
        if not isinstance(of, str) or of not in tables or "files_of" in tables[of]:
            raise ConfigError(f"shelf entry {name}: files_of is {of!r}, which is no model with sources")
        if given := sorted({"sources", "fingerprint"} & table.keys()):
            raise ConfigError(f"shelf entry {name}: {' and '.join(given)} come from {of}, whose files it names")
        table |= {key: tables[of][key] for key in ("sources", "fingerprint") if key in tables[of]}
    return table


def _packaged(file: str) -> Path:
    return Path(str(resources.files("trifolium"))) / "adapters" / file


def _check_identity(entry: ShelfEntry, path: Path) -> None:
    """What arrived opens, and is the model of this entry. A shelf adapter fits nothing else."""
    from .checkpoint import open_file

    found = open_file(path).fingerprint()
    if entry.fingerprint not in (None, found):
        raise DownloadError(f"these are other weights: fingerprint {found[:12]}, expected {entry.fingerprint:.12}")


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where models are kept: $TRIFOLIUM_CACHE, or trifolium/ in $XDG_CACHE_HOME (if absolute) or ~/.cache."""
    if chosen := environment.get("TRIFOLIUM_CACHE"):
        return Path(chosen).expanduser()
    # The XDG base directory specification: a relative path there is invalid and is to be ignored.
    xdg = Path(environment.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "trifolium"


def shelf_entries() -> tuple[ShelfEntry, ...]:
    """Every model on the shelf, by name."""
    return tuple(entry for _, entry in sorted(Shelf.default().entries.items()))


def find(name: str) -> ShelfEntry:
    """See Shelf.find."""
    return Shelf.default().find(name)


def pull(name: str, progress: bool = True, *, verify: bool = False) -> Path:
    """See Shelf.pull."""
    return Shelf.default().pull(name, progress, verify=verify)


def remove(name: str) -> bool:
    """See Shelf.remove."""
    return Shelf.default().remove(name)


def installed_path(name: str) -> Path | None:
    """See Shelf.installed_path."""
    return Shelf.default().installed_path(name)


def adapter_path(name: str) -> Path | None:
    """See Shelf.adapter_path."""
    return Shelf.default().adapter_path(name)
