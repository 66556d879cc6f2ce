"""Skills: merging adds the product and nothing else; other weights have another identity; broken files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import trifolium
from random_models import tiny_config
from tiny_checkpoints import random_tensors, write_gguf
from tiny_engine import adapter_config, build_adapter, write_folder
from trifolium.api import products_of
from trifolium.checkpoint import (
    Checkpoint,
    Skills,
    open_checkpoint,
    prepared,
    read_skills,
    read_skills_config,
    save_adapter,
    save_skills,
    shelf,
    write_hf,
)
from trifolium.checkpoint.prepared import PreparedWeights
from trifolium.checkpoint.skills_file import METADATA_KEY, Pair
from trifolium.config import SkillsConfig
from trifolium.errors import (
    AdapterMismatchError,
    CorruptFileError,
    NotFoundError,
    NumericalError,
    TensorMismatchError,
    UnsupportedModelError,
)
from trifolium.model import Transformer

CHANGED = ("layers.0.mixer.qkv.weight", "layers.1.ffn.down.weight")


def config_of(base: Checkpoint, rank: int = 3) -> SkillsConfig:
    return SkillsConfig(base_name=base.name, base_fingerprint=base.fingerprint(), rank=rank, alpha=2.0 * rank)


def pairs_of(base: Checkpoint, rank: int = 3, seed: int = 0) -> dict[str, Pair]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: Pair(
            torch.randn(rank, base.shapes[name][1], generator=generator),
            torch.randn(base.shapes[name][0], rank, generator=generator),
        )
        for name in CHANGED
    }


@pytest.fixture
def base(tmp_path: Path) -> Checkpoint:
    config = tiny_config("llama")
    return open_checkpoint(write_hf(tmp_path / "base", config, random_tensors(config).items()))


@pytest.fixture
def path(tmp_path: Path, base: Checkpoint) -> Path:
    save_skills(tmp_path / "skills.safetensors", config_of(base), pairs_of(base))
    return tmp_path / "skills.safetensors"


def test_merging_adds_the_scaled_product_and_touches_nothing_else(base: Checkpoint, path: Path) -> None:
    plain, skilled = dict(base.tensors(torch.float32)), dict(base.with_skills(path).tensors(torch.float32))
    assert list(skilled) == list(plain)
    for name, weight in plain.items():
        if name in CHANGED:
            a, b = (x.half().double() for x in pairs_of(base)[name])
            torch.testing.assert_close(skilled[name].double(), weight.double() + 2 * b @ a, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(skilled[name], weight), name
    assert all(torch.equal(x, plain[name]) for name, x in base.tensors(torch.float32))  # the plain one stays


def test_a_merged_weight_is_rounded_to_what_the_file_stores(tmp_path: Path) -> None:
    config = tiny_config("llama")
    tensors = {name: x.bfloat16() for name, x in random_tensors(config).items()}
    half = open_checkpoint(write_hf(tmp_path / "half", config, tensors.items()))
    save_skills(tmp_path / "s.safetensors", config_of(half), pairs_of(half))
    merged = dict(half.with_skills(tmp_path / "s.safetensors").tensors(torch.float32))[CHANGED[0]]
    assert torch.equal(merged, merged.bfloat16().float())
    assert not torch.equal(merged, tensors[CHANGED[0]].float())


def test_skilled_weights_have_an_identity_of_their_own(tmp_path: Path, base: Checkpoint, path: Path) -> None:
    skilled = base.with_skills(path)
    save_skills(tmp_path / "other.safetensors", config_of(base), pairs_of(base, seed=1))
    other = base.with_skills(tmp_path / "other.safetensors")
    assert len({base.fingerprint(), skilled.fingerprint(), other.fingerprint()}) == 3
    assert skilled.fingerprint() == base.with_skills(path).fingerprint()
    assert skilled.base_fingerprint() == other.base_fingerprint() == base.fingerprint()


def test_a_gguf_file_and_its_original_take_the_same_skills(tmp_path: Path, base: Checkpoint, path: Path) -> None:
    quantised = open_checkpoint(write_gguf(tmp_path / "x.gguf", base.config, random_tensors(base.config)))
    assert quantised.with_skills(path).fingerprint() == base.with_skills(path).fingerprint()
    assert not quantised.with_skills(path).four_bit


def test_prepared_weights_of_other_skills_are_other_files(
    tmp_path: Path, base: Checkpoint, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "MIN_PARAMETERS", 0)
    kept = PreparedWeights(tmp_path / "weights", 1 << 30)
    products = products_of(Transformer(base.config))
    values = [
        dict(kept.tensors(checkpoint, torch.int8, products, pytest.fail))[CHANGED[0]].values.clone()
        for checkpoint in (base, base.with_skills(path), base, base.with_skills(path))
    ]
    assert len(list((tmp_path / "weights").glob("*.safetensors"))) == 2
    assert torch.equal(values[0], values[2]) and torch.equal(values[1], values[3])
    assert not torch.equal(values[0], values[1])
    kept.clear(base.fingerprint())  # what `models remove` asks for: both are gone
    assert not list((tmp_path / "weights").glob("*.safetensors"))


def test_files_that_do_not_fit_are_refused(tmp_path: Path, base: Checkpoint, path: Path) -> None:
    changes = random_tensors(base.config, seed=1)
    other = open_checkpoint(write_hf(tmp_path / "another", base.config, changes.items()))
    with pytest.raises(AdapterMismatchError, match=r"made for base, not for another.*--skills none"):
        other.with_skills(path)
    target, config, pairs = tmp_path / "bad.safetensors", config_of(base), pairs_of(base)

    def refused(error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            read_skills(target, base, base.shapes)

    save_skills(target, config, {**pairs, "layers.9.mixer.qkv.weight": pairs[CHANGED[0]]})
    refused(TensorMismatchError, r"no weights .* called layers\.9\.mixer\.qkv\.weight")
    save_skills(target, config, {**pairs, "norm.weight": Pair(torch.ones(3, 1), torch.ones(48, 3))})
    refused(TensorMismatchError, r"no weights .* called norm\.weight")
    save_skills(target, config, {**pairs, CHANGED[0]: Pair(*(x.T for x in pairs[CHANGED[0]]))})
    refused(TensorMismatchError, r"mis-shaped: layers\.0\.mixer\.qkv\.weight\.A")
    save_skills(target, config_of(base, rank=4), pairs)
    refused(TensorMismatchError, r"mis-shaped: layers\.0\.mixer\.qkv\.weight\.A is \[3")
    metadata = {METADATA_KEY: config.model_dump_json()}
    tensors = {f"{name}.{part}": x.half() for name, pair in pairs.items() for part, x in zip("AB", pair, strict=True)}
    save_file({k: v for k, v in tensors.items() if k != f"{CHANGED[1]}.B"}, target, metadata=metadata)
    refused(TensorMismatchError, r"missing: layers\.1\.ffn\.down\.weight\.B")
    broken = tensors[f"{CHANGED[0]}.A"].clone()
    broken[1, 2] = torch.inf
    save_file({**tensors, f"{CHANGED[0]}.A": broken}, target, metadata=metadata)
    refused(CorruptFileError, r"layers\.0\.mixer\.qkv\.weight\.A holds NaN or infinite")
    save_file({k: v.float() for k, v in tensors.items()}, target, metadata=metadata)
    refused(CorruptFileError, "float16 or bfloat16")
    save_file(tensors, target, metadata={METADATA_KEY: json.dumps({**config.model_dump(), "format": 2})})
    refused(UnsupportedModelError, "format 2")
    save_file(tensors, target)
    refused(CorruptFileError, "not a skills file")
    target.write_bytes(path.read_bytes()[:-9])
    refused(CorruptFileError, "damaged")
    target.unlink()
    refused(NotFoundError, "no such skills file")


def test_saving_is_whole_or_not_at_all(base: Checkpoint, path: Path) -> None:
    before = path.read_bytes()
    huge = {CHANGED[0]: Pair(*(x * 1e6 for x in pairs_of(base)[CHANGED[0]]))}
    with pytest.raises(NumericalError, match="not finite in float16"):
        save_skills(path, config_of(base), huge)
    assert path.read_bytes() == before
    assert read_skills_config(path) == config_of(base)


def test_loading_with_skills_and_the_adapters_of_both(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    plain = write_folder(folder)
    generator = torch.Generator().manual_seed(3)
    pairs = {
        name: Pair(torch.randn(2, shape[1], generator=generator), torch.randn(shape[0], 2, generator=generator) * 0.1)
        for name, shape in plain.shapes.items()
        if name.startswith("layers.") and len(shape) == 2
    }
    skills = tmp_path / "skills.safetensors"
    save_skills(skills, config_of(plain, rank=2), pairs)
    skilled = plain.with_skills(skills)
    lm = trifolium.load(folder, adapter=None, skills=skills, dtype="float32")
    assert lm.fingerprint == skilled.fingerprint()
    # The engine's answers are those of a model that was stored with the sums.
    write_hf(tmp_path / "merged", plain.config, skilled.tensors(torch.float32))
    plain.copy_tokenizer(tmp_path / "merged")
    merged = trifolium.load(tmp_path / "merged", adapter=None, dtype="float32")
    answers = [m.generate("Hello", max_tokens=12, ignore_eos=True).token_ids for m in (lm, merged)]
    assert answers[0] == answers[1]
    assert (
        answers[0] != trifolium.load(folder, adapter=None).generate("Hello", max_tokens=12, ignore_eos=True).token_ids
    )
    # The plain weights' adapter still serves, and says so; its drafts change no answer.
    borrowed = trifolium.load(folder, adapter=folder / "adapter.safetensors", skills=skills, dtype="float32")
    assert "without these skills" in borrowed.notes[0]
    drafted = borrowed.generate("Hello", max_tokens=12, ignore_eos=True, free_rows=True)
    assert drafted.token_ids == answers[0] and borrowed.model.adapter is not None
    assert not trifolium.load(folder, adapter=folder / "adapter.safetensors").notes
    adapter = dict(build_adapter(plain.config, 6, generator, 0.1).named_parameters())
    save_adapter(tmp_path / "own.safetensors", adapter_config(plain.config, 6, skilled.fingerprint()), adapter)
    both = trifolium.load(folder, adapter=tmp_path / "own.safetensors", skills=skills)
    assert both.model.adapter is not None and not both.notes
    with pytest.raises(AdapterMismatchError, match="other skills"):
        trifolium.load(folder, adapter=tmp_path / "own.safetensors")


def test_the_shelf_gives_a_name_skills_and_keeps_the_plain_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "package" / "models" / "tiny"
    plain = write_folder(folder)
    text = f"""
[models.tiny]
title = "Tiny"
description = "With skills"
licence = "MIT"
fingerprint = "{plain.fingerprint()}"
adapter = "skilled.safetensors"
skills = "skills.safetensors"
[[models.tiny.sources]]
kind = "package"
folder = "models/tiny"
bytes = 1
[models.tiny-plain]
title = "Tiny"
description = "Without"
licence = "MIT"
adapter = "plain.safetensors"
files_of = "tiny"
"""
    adapters = tmp_path / "package" / "adapters"
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path / "package")
    found = shelf.Shelf.load(text, tmp_path / "cache")
    monkeypatch.setattr(shelf.Shelf, "default", lambda: found)
    with pytest.raises(NotFoundError, match="skills of tiny are missing"):
        open_checkpoint("tiny", skills="auto")
    outputs, inputs = plain.shapes["layers.0.mixer.out.weight"]
    pairs = {"layers.0.mixer.out.weight": Pair(torch.ones(2, inputs), torch.ones(outputs, 2))}
    save_skills(adapters / "skills.safetensors", config_of(plain, rank=2), pairs)
    skilled = open_checkpoint("tiny", skills="auto")
    assert isinstance(skilled.skills, Skills) and skilled.name == "tiny"
    assert open_checkpoint("tiny-plain", skills="auto").fingerprint() == plain.fingerprint()
    assert open_checkpoint("tiny", skills=None).fingerprint() == plain.fingerprint()
    generator = torch.Generator().manual_seed(0)
    for name, checkpoint in (("plain", plain), ("skilled", skilled)):
        adapter = dict(build_adapter(plain.config, 6, generator, 0.1).named_parameters())
        config = adapter_config(plain.config, 6, checkpoint.fingerprint())
        save_adapter(adapters / f"{name}.safetensors", config, adapter)
    loaded = {name: trifolium.load(name) for name in ("tiny", "tiny-plain")}
    prints = {name: lm.model.adapter.config.base_fingerprint for name, lm in loaded.items()}
    assert prints == {"tiny": skilled.fingerprint(), "tiny-plain": plain.fingerprint()}
    (adapters / "skilled.safetensors").unlink()
    borrowed = trifolium.load("tiny")
    assert borrowed.model.adapter is not None and "without these skills" in borrowed.notes[0]
    assert found.installed_path("tiny-plain") == found.installed_path("tiny") == folder
