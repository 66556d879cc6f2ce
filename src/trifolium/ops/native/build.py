"""Compiling the kernels at first use, and finding them again: a shared library in the user's cache folder.

Everything works without them, slower: where there is no compiler, or TRIFOLIUM_NATIVE=0, torch does the same sums.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from filelock import FileLock

FOLDER = Path(__file__).parent
SOURCES = ("products.cpp", "delta.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp", "-ffp-contract=off", "-fno-math-errno")
COMPILE_SECONDS = 120

_log = logging.getLogger(__name__)


class Native(NamedTuple):
    """The compiled library, or None, and why."""

    library: ctypes.CDLL | None
    why: str


@cache
def native() -> Native:
    """The kernels, compiled if need be (about ten seconds, once for a machine and a version of the source)."""
    if os.environ.get("TRIFOLIUM_NATIVE", "1") == "0":
        return Native(None, "TRIFOLIUM_NATIVE=0")
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return Native(None, "no C++ compiler was found")
    try:
        path = _compiled(compiler)
        if hasattr(os, "getuid") and path.stat().st_uid != os.getuid():  # code that someone else may have put there
            return Native(None, f"{path} belongs to another user; set TRIFOLIUM_CACHE to a folder of your own")
        return Native(ctypes.CDLL(str(path)), f"compiled by {compiler}")
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        return Native(None, f"{compiler} failed: {detail.strip().splitlines()[-1] if detail.strip() else error}")


def _compiled(compiler: str) -> Path:
    """The library's path. Built beside its place and renamed, so there is never half a file under its name."""
    from ...checkpoint.shelf import cache_folder

    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=20).stdout
    openmp = _torch_openmp()
    texts = [path.read_text() for path in sorted((*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h")))]
    digest = hashlib.sha256("\0".join([*texts, compiler, version, " ".join(FLAGS), str(openmp), _cpu()]).encode())
    key = digest.hexdigest()[:16]
    folder = cache_folder(os.environ) / "native"
    path = folder / f"kernels-{key}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if path.exists():
            return path
        _log.info("compiling the native kernels, once for this machine (some ten seconds)")
        with TemporaryDirectory(prefix=".kernels-", dir=folder) as partial:
            _build(compiler, Path(partial), openmp).replace(path)
    return path


def _build(compiler: str, folder: Path, openmp: Path | None) -> Path:
    """The library, in `folder`; its sources are compiled side by side."""
    objects = [folder / f"{source}.o" for source in SOURCES]
    commands = [
        [compiler, *FLAGS, "-c", str(FOLDER / source), "-o", str(to)]
        for source, to in zip(SOURCES, objects, strict=True)
    ]
    with ThreadPoolExecutor(len(commands)) as pool:
        list(pool.map(_run, commands))
    library = folder / "kernels.so"
    _run([compiler, *FLAGS, "-shared", *map(str, objects), *([str(openmp)] if openmp else []), "-o", str(library)])
    return library


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMPILE_SECONDS)


def _torch_openmp() -> Path | None:
    """The OpenMP library that torch brings along: sharing it means one pool of threads instead of two that compete."""
    libraries = [Path(torch.__file__).parent / "lib", Path(torch.__file__).parent.parent / "torch.libs"]
    return next((path for folder in libraries for path in sorted(folder.glob("libgomp*.so*"))), None)


def _cpu() -> str:
    """What -march=native stands for here: a cache may be shared between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
