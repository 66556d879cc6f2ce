"""Prepared weights: the same numbers as from the checkpoint, kept safely, and never trusted without a look."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file

from random_models import tiny_hybrid
from tiny_checkpoints import random_tensors, tiny_config, write_gguf
from trifolium.api import products_of
from trifolium.checkpoint import Checkpoint, open_checkpoint, prepared, safetensors_file, write_hf
from trifolium.checkpoint.prepared import PreparedWeights, Products, Weight
from trifolium.errors import ConfigError, TensorMismatchError
from trifolium.evaluate.fidelity import commit_logits
from trifolium.model import Transformer
from trifolium.model.linear import Linear
from trifolium.ops.linear.quantised import Groups, QuantisedWeight, quantise

DTYPES = [torch.float32, torch.bfloat16, torch.int8, torch.int4]


@pytest.fixture(autouse=True)
def tiny_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "MIN_PARAMETERS", 0)


@pytest.fixture(params=["tied", "untied", "hybrid"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    """A GGUF file, or a folder with experts, delta-net layers and a router."""
    if request.param == "hybrid":
        config = tiny_hybrid("qwen3_5_moe_text")
        return open_checkpoint(write_hf(tmp_path / "hybrid", config, random_tensors(config).items()))
    return tied(tmp_path, request.param == "tied")


def tied(folder: Path, tie: bool = True, seed: int = 0) -> Checkpoint:
    config = tiny_config("llama", tie_embeddings=tie, hidden_size=64, intermediate_size=96)
    return open_checkpoint(write_gguf(folder / "model.gguf", config, random_tensors(config, seed)))


def products(checkpoint: Checkpoint) -> Products:
    return products_of(Transformer(checkpoint.config))


class Notes(list[str]):
    __call__ = list.append


def take(weights: PreparedWeights, checkpoint: Checkpoint, dtype: torch.dtype = torch.int8) -> tuple[Notes, dict]:
    notes = Notes()
    return notes, dict(weights.tensors(checkpoint, dtype, products(checkpoint), notes))


def equal(a: Weight, b: Weight) -> bool:
    if isinstance(a, QuantisedWeight) and isinstance(b, QuantisedWeight):
        return torch.equal(a.values, b.values) and torch.equal(a.scale, b.scale)
    if isinstance(a, Groups) and isinstance(b, Groups):
        parts = (torch.equal(getattr(a, part), getattr(b, part)) for part in ("values", "step", "least"))
        return a.inputs == b.inputs and all(parts)
    return type(a) is type(b) and a.dtype == b.dtype and torch.equal(a, b)


def files(weights: PreparedWeights) -> list[Path]:
    return sorted(weights.folder.glob("*.safetensors"))


@pytest.fixture
def weights(tmp_path: Path) -> PreparedWeights:
    return PreparedWeights(tmp_path / "cache" / "weights", 1 << 30)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kept_weights_are_those_of_the_checkpoint(
    weights: PreparedWeights, checkpoint: Checkpoint, dtype: torch.dtype
) -> None:
    off = PreparedWeights(weights.folder, 0)
    notes, plain = take(off, checkpoint, dtype)
    assert notes == [] and not weights.folder.exists()
    for _ in range(2):  # made, then found
        notes, kept = take(weights, checkpoint, dtype)
        assert notes == [] and list(kept) == list(plain)
        assert all(equal(kept[name], plain[name]) for name in plain)
    assert len(files(weights)) == (checkpoint.format == "gguf" or dtype in (torch.int8, torch.int4))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_model_filled_from_them_is_the_same_model(
    weights: PreparedWeights,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    native: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bit for bit, whether the weights were made just now or found."""
    if not native:
        monkeypatch.setattr("trifolium.ops.native.available", lambda: False)

    def logits(tensors: Iterator) -> torch.Tensor:
        model = Transformer(checkpoint.config)
        model.fill(tensors, dtype)
        assert all(m.quantised is None and m.kernel is not None for m in model.modules() if isinstance(m, Linear))
        with torch.inference_mode():
            return commit_logits(model, model.new_state(), [3, 1, 4, 1, 5])

    expected = logits(checkpoint.tensors(torch.float32))
    for _ in range(2):
        assert torch.equal(logits(weights.tensors(checkpoint, dtype, products(checkpoint), Notes())), expected)


def test_quantised_weights_fill_a_plain_model(weights: PreparedWeights, tmp_path: Path) -> None:
    """For a model that isn't packed they are dequantised; shapes and names are checked as ever."""
    checkpoint = tied(tmp_path)
    model = Transformer(checkpoint.config)
    _, kept = take(weights, checkpoint)
    model.fill(kept.items())
    name = "layers.1.ffn.down.weight"
    assert torch.equal(model.get_parameter(name), kept[name].dequantise())
    assert torch.equal(model.embed.weight, kept["embed.weight"])
    kept[name] = quantise(torch.zeros(3, 5))
    with pytest.raises(TensorMismatchError, match=r"layers\.1\.ffn\.down\.weight is \(3, 5\)"):
        Transformer(checkpoint.config).fill(kept.items(), torch.int8)


def test_int4_is_for_layers(weights: PreparedWeights, checkpoint: Checkpoint) -> None:
    """The head and experts are int8; groups that are cut short keep their number of inputs."""
    _, kept = take(weights, checkpoint, torch.int4)
    groups = {name: weight for name, weight in kept.items() if isinstance(weight, Groups)}
    assert groups and all(weight.shape == checkpoint.shapes[name] for name, weight in groups.items())
    assert any(weight.inputs % 32 for weight in groups.values()) or checkpoint.config.hidden_size == 64
    assert isinstance(kept["head.weight"], QuantisedWeight)
    assert not any(name.endswith(("ffn.gate_up", "ffn.down", "router.weight")) for name in groups)


def test_what_is_quantised_and_what_is_not(weights: PreparedWeights, checkpoint: Checkpoint) -> None:
    _, kept = take(weights, checkpoint)
    quantised = {name for name, weight in kept.items() if isinstance(weight, QuantisedWeight)}
    assert "head.weight" in quantised
    plain = set(kept) - quantised
    assert {name for name in plain if not name.endswith(("norm.weight", ".bias"))} <= {
        "embed.weight",
        *(f"layers.{i}.{part}" for i in range(9) for part in ("ffn.router.weight", "ffn.shared_gate.weight")),
        *(f"layers.{i}.mixer.{part}" for i in range(9) for part in ("conv", "decay_log", "decay_bias")),
    }
    assert all(kept[name].dtype == torch.float32 for name in plain)


def test_written_is_mapped_and_the_file_can_go(weights: PreparedWeights, tmp_path: Path) -> None:
    """Writing to a mapped weight never reaches the file, and removing the file never reaches the weight."""
    checkpoint = tied(tmp_path)
    take(weights, checkpoint)
    (path,) = files(weights)
    before = path.read_bytes()
    _, kept = take(weights, checkpoint)
    kept["embed.weight"].add_(1)
    assert path.read_bytes() == before
    copy = {name: w.values.clone() for name, w in kept.items() if isinstance(w, QuantisedWeight)}
    assert weights.clear() == len(before)
    assert files(weights) == []
    assert all(torch.equal(kept[name].values, values) for name, values in copy.items())


def test_the_library_reads_our_file(weights: PreparedWeights, tmp_path: Path) -> None:
    checkpoint = tied(tmp_path)
    _, kept = take(weights, checkpoint)
    (path,) = files(weights)
    theirs = load_file(path)
    assert torch.equal(theirs["embed.weight"], kept["embed.weight"])
    assert torch.equal(theirs["layers.1.ffn.down.weight.scale"], kept["layers.1.ffn.down.weight"].scale)
    starts = {stored.name: stored.start for stored in safetensors_file.contents(path)}
    assert starts["embed.weight"] % safetensors_file.ALIGN == 0


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "noise":
        path.write_bytes(os.urandom(999))
    elif how == "huge header":
        path.write_bytes(b"\xff" * 8 + content[8:])
    elif how == "deep header":
        text = b'{"a":' + b"[" * 50_000
        path.write_bytes(len(text).to_bytes(8, "little") + text)
    else:
        tensors = load_file(path)
        about = safetensors_file.metadata(path)
        if how == "no metadata":
            about = {"format": "pt"}
        elif how == "another model":
            about = {prepared.METADATA_KEY: "1 " + "0" * 33 + "-int8"}
        elif how == "another format":
            about = {prepared.METADATA_KEY: about[prepared.METADATA_KEY].replace("1 ", "2 ", 1)}
        elif how == "missing":
            del tensors["norm.weight"]
        elif how == "unexpected":
            tensors["extra"] = torch.zeros(3)
        elif how == "another shape":
            tensors["norm.weight"] = torch.zeros(63)
        elif how == "another dtype":
            tensors["norm.weight"] = tensors["norm.weight"].half()
        elif how == "a dtype we don't know":
            tensors["norm.weight"] = torch.zeros(64, dtype=torch.int64)
        elif how == "scales":
            tensors["head.weight.scale"][5] = float("nan")
        save_file(tensors, path, metadata=about)


@pytest.mark.parametrize(
    "how",
    [
        *("cut", "empty", "noise", "huge header", "deep header", "no metadata", "another model", "another format"),
        *("missing", "unexpected", "another shape", "another dtype", "a dtype we don't know", "scales"),
    ],
)
def test_damaged_or_hostile_files_are_made_anew(weights: PreparedWeights, tmp_path: Path, how: str) -> None:
    checkpoint = tied(tmp_path)
    _, expected = take(PreparedWeights(tmp_path, 0), checkpoint)
    take(weights, checkpoint)
    (path,) = files(weights)
    whole = path.read_bytes()
    damage(path, how)
    notes, kept = take(weights, checkpoint)
    assert len(notes) == 1 and "are made anew" in notes[0] and str(path) in notes[0]
    assert all(equal(kept[name], expected[name]) for name in expected)
    assert path.read_bytes() == whole
    assert take(weights, checkpoint)[0] == []


def test_other_weights_of_one_fingerprint_are_kept_apart(weights: PreparedWeights, tmp_path: Path) -> None:
    """The norms, which the fingerprint covers, are equal; the matrices are not."""
    a = tied(tmp_path)
    b_folder = tmp_path / "b"
    b_folder.mkdir()
    tensors = random_tensors(a.config, 0)
    tensors["layers.0.ffn.down.weight"] = tensors["layers.0.ffn.down.weight"] * 2
    b = open_checkpoint(write_gguf(b_folder / "model.gguf", a.config, tensors))
    assert a.fingerprint() == b.fingerprint()
    first, second = take(weights, a)[1], take(weights, b)[1]
    assert len(files(weights)) == 2
    assert not equal(first["layers.0.ffn.down.weight"], second["layers.0.ffn.down.weight"])


def test_a_checkpoint_written_anew_is_prepared_anew(weights: PreparedWeights, tmp_path: Path) -> None:
    """Even with the same size and modification time."""
    checkpoint = tied(tmp_path)
    status = checkpoint.path.stat()
    first = take(weights, checkpoint)[1]
    tensors = random_tensors(checkpoint.config, 0)
    tensors["embed.weight"] = tensors["embed.weight"] + 1
    write_gguf(checkpoint.path, checkpoint.config, tensors)
    os.utime(checkpoint.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert checkpoint.path.stat().st_size == status.st_size
    second = take(weights, open_checkpoint(checkpoint.path))[1]
    assert not torch.equal(first["embed.weight"], second["embed.weight"])


def test_the_least_recently_used_make_room(tmp_path: Path) -> None:
    checkpoints = []
    for i in range(3):
        (tmp_path / str(i)).mkdir()
        checkpoints.append(tied(tmp_path / str(i), seed=i))
    weights = PreparedWeights(tmp_path / "weights", 1 << 30)
    take(weights, checkpoints[0])
    (path,) = files(weights)
    weights.limit = int(2.5 * path.stat().st_size)
    take(weights, checkpoints[1])
    first, second = sorted(files(weights), key=lambda p: p != path)
    os.utime(first, ns=(1, 1))
    os.utime(second, ns=(2, 2))
    take(weights, checkpoints[0])  # used again: now the second is the oldest
    (weights.folder / ".x-left.safetensors").write_bytes(b"half a file of a process that was killed")
    take(weights, checkpoints[2])
    assert first.exists() and not second.exists() and len(files(weights)) == 2
    assert sum(p.stat().st_size for p in files(weights)) <= weights.limit
    assert not list(weights.folder.glob(".x*"))
    weights.limit = 1000
    notes, kept = take(weights, checkpoints[1])
    assert len(kept) > 9 and "TRIFOLIUM_WEIGHTS_GB allows less" in notes[0]
    weights.clear(checkpoints[0].fingerprint())
    assert len(files(weights)) == 1


def test_without_a_place_to_keep_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the folder should be, a full disk, a folder in the file's place, a lock that stays taken."""
    checkpoint = tied(tmp_path)
    _, expected = take(PreparedWeights(tmp_path, 0), checkpoint)

    def check(weights: PreparedWeights, words: str) -> None:
        notes, kept = take(weights, checkpoint)
        assert len(notes) == 1 and words in notes[0]
        assert all(equal(kept[name], expected[name]) for name in expected)

    (tmp_path / "file").write_text("no folder")
    check(PreparedWeights(tmp_path / "file" / "weights", 1 << 30), "can't be kept")
    weights = PreparedWeights(tmp_path / "weights", 1 << 30)
    with monkeypatch.context() as context:
        context.setattr(prepared, "RESERVE_BYTES", 1 << 60)
        check(weights, "GB of disk are left")
    take(weights, checkpoint)
    (path,) = files(weights)
    path.unlink()
    path.mkdir()
    check(weights, "can't be kept")
    assert [p.name for p in weights.folder.iterdir() if p.name.startswith(".") and p.name != ".lock"] == []
    path.rmdir()
    monkeypatch.setattr(prepared, "LOCK_SECONDS", 0.05)
    with FileLock(weights.folder / ".lock"):
        check(weights, "can't be kept")


def test_many_at_once_make_one_file(weights: PreparedWeights, tmp_path: Path) -> None:
    checkpoint = tied(tmp_path)
    _, expected = take(PreparedWeights(tmp_path, 0), checkpoint)
    results = []
    threads = [threading.Thread(target=lambda: results.append(take(weights, checkpoint))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and len(files(weights)) == 1
    for notes, kept in results:
        assert notes == [] and all(equal(kept[name], expected[name]) for name in expected)


def test_only_what_saves_work_is_kept(
    weights: PreparedWeights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("qwen3")
    folder = open_checkpoint(write_hf(tmp_path / "folder", config, random_tensors(config).items()))
    take(weights, folder, torch.float32)
    monkeypatch.setattr(prepared, "MIN_PARAMETERS", 10**9)
    take(weights, folder, torch.int8)
    assert not weights.folder.exists()


def test_the_bound_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIFOLIUM_CACHE", str(tmp_path))
    assert PreparedWeights.default().folder == tmp_path / "weights"
    monkeypatch.setenv("TRIFOLIUM_WEIGHTS_GB", "2.5")
    assert PreparedWeights.default().limit == 2_500_000_000
    for bad in ("much", "-1", "nan", "inf", ""):
        monkeypatch.setenv("TRIFOLIUM_WEIGHTS_GB", bad)
        with pytest.raises(ConfigError, match="TRIFOLIUM_WEIGHTS_GB"):
            PreparedWeights.default()
