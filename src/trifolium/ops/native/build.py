"""Compiling the kernels at first use, and finding them again: a shared library in the user's cache folder.

Everything works without them, slower: where there is no compiler, or TRIFOLIUM_NATIVE=0, torch does the same sums.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

import torch
from filelock import FileLock

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-fopenmp", "-ffp-contract=off", "-fno-math-errno")
COMPILE_SECONDS = 120


class Native(NamedTuple):
    """The compiled library, or None, and why."""

    library: ctypes.CDLL | None
    why: str


@cache
def native() -> Native:
    """The kernels, compiled if need be (about two seconds, once for a machine and a version of the source)."""
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
    key = hashlib.sha256(
        "\0".join([SOURCE.read_text(), compiler, version, " ".join(FLAGS), str(openmp), _cpu()]).encode()
    ).hexdigest()[:16]
    folder = cache_folder(os.environ) / "native"
    path = folder / f"kernels-{key}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if path.exists():
            return path
        handle, partial = mkstemp(prefix=".kernels-", suffix=".so", dir=folder)
        os.close(handle)
        try:
            link = [str(openmp)] if openmp else []
            command = [compiler, *FLAGS, str(SOURCE), *link, "-o", partial]
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=COMPILE_SECONDS)
            Path(partial).replace(path)
        finally:
            Path(partial).unlink(missing_ok=True)
    return path


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
