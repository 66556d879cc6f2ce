"""The machine and the environments of the programs on it."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

REQUIREMENTS = {
    "trifolium": (),
    "llamacpp": ("xllamacpp==2026.10.11549",),
    # transformers reads GGUF files only with accelerate
    "transformers": ("transformers==5.24.0", "gguf==0.19.0", "accelerate==1.15.0"),
    "diffusers": ("diffusers==0.42.0",),
}
FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimddp")
"""The CPU features that decide which kernels run."""


def python_for(program: str, cache: Path) -> Path:
    """The interpreter that has what `program` needs: this one, or that of an environment made now, under `cache`.

    A made environment sees this one's packages (torch among them, so that it isn't fetched again) behind its own.
    Raises subprocess.CalledProcessError if pip can't install.
    """
    requirements = REQUIREMENTS[program]
    if all(_installed(requirement.split("==")[0]) for requirement in requirements):
        return Path(sys.executable)
    folder = cache / "-".join(requirements).replace("==", "-")
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        site = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
        (site / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pins = [f"{name}=={importlib.metadata.version(name)}" for name in ("torch", "numpy") if _installed(name)]
        pins = [pin.split("+")[0] for pin in pins]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *requirements, *pins], check=True)
        (folder / "ready").touch()
    return python


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def facts(threads: int) -> dict[str, Any]:
    """What a reader must know to compare: CPU, memory, versions, threads, the date."""
    import torch

    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    cpu = {key.strip(): value.strip() for key, value in fields.items()}
    flags = {*cpu.get("flags", cpu.get("Features", "")).split()}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        "cores": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "capability": torch.backends.cpu.get_cpu_capability(),
        "memory_gb": round(memory / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "threads": threads,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def commit_of(root: Path) -> str:
    """The commit of the working tree, with a plus sign if it has changes; "unknown" without git."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain", "src"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
