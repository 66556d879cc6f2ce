"""Hybrid checkpoints: what transformers saved, what we write, prefixes, forms of experts, preview tensors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hybrid_checkpoints import HYBRID_FAMILIES, fused_hybrid, hf_hybrid
from random_models import tiny_hybrid
from tiny_checkpoints import random_tensors
from trifolium.checkpoint import Checkpoint, open_checkpoint, write_hf
from trifolium.checkpoint.names import targets
from trifolium.config import ModelConfig
from trifolium.errors import CorruptFileError, TensorMismatchError, UnsupportedModelError

ALL = (*HYBRID_FAMILIES, "clover_moe")
EVERY = pytest.mark.parametrize("family", ALL)


def moe(family: str, **changes: Any) -> ModelConfig:
    """The tiny hybrid as a file of transformers says it: a model of experts only has no size of dense layers."""
    return tiny_hybrid(family, **({"intermediate_size": 20} if family == "qwen3_5_moe_text" else {}), **changes)


def written(path: Path, family: str, **changes: Any) -> tuple[Path, dict[str, torch.Tensor]]:
    config = tiny_hybrid(family, **changes)
    tensors = random_tensors(config)
    return write_hf(path / family, config, tensors.items()), tensors


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    """Rewrite the weights of a folder."""
    state = {k: v.clone() for k, v in load_file(folder / "model.safetensors").items()}
    save_file(change(state), folder / "model.safetensors")


def reconfigure(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None drops one."""
    values = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def everything(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    previews = checkpoint.preview_tensors(torch.float32)
    return {**dict(checkpoint.tensors(torch.float32)), **{f"adapter.{k}": v for k, v in previews.items()}}


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    assert set(found) == set(expected)
    return all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("family", HYBRID_FAMILIES)
@pytest.mark.parametrize(
    "changes", [{}, {"tie_embeddings": True, "qkv_bias": True, "out_bias": True}], ids=["plain", "tied-biased"]
)
def test_what_transformers_saved_is_read(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config = moe(family, **changes)
    model = hf_hybrid(config)
    model.save_pretrained(tmp_path, max_shard_size="100KB")
    if family != "qwen3_5_text":
        assert ".experts.6.up_proj.weight" in (tmp_path / "model.safetensors.index.json").read_text()
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == config
    assert same(everything(checkpoint), fused_hybrid(model, config))


@pytest.mark.parametrize("family", HYBRID_FAMILIES)
def test_transformers_reads_what_is_written(family: str, tmp_path: Path) -> None:
    config = moe(family)
    model = hf_hybrid(config)
    folder = write_hf(tmp_path / "model", config, fused_hybrid(model, config).items())
    loaded, notes = type(model).from_pretrained(folder, output_loading_info=True)
    assert not any(notes.values()), notes
    state = loaded.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


@EVERY
def test_writing_and_reading_keeps_every_bit(family: str, tmp_path: Path) -> None:
    config = tiny_hybrid(family)
    tensors = {name: tensor.bfloat16() for name, tensor in random_tensors(config).items()}
    checkpoint = open_checkpoint(write_hf(tmp_path / "model", config, tensors.items(), shard_bytes=50_000))
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 2
    assert checkpoint.config == config
    assert same(everything(checkpoint), {name: tensor.float() for name, tensor in tensors.items()})
    assert not any(name.startswith("adapter.") for name, _ in checkpoint.tensors(torch.bfloat16))


def test_the_form_of_written_experts_is_the_published_one(tmp_path: Path) -> None:
    stacked, _ = written(tmp_path, "qwen3_5_moe_text")
    names = load_file(stacked / "model.safetensors")
    assert names["model.layers.2.mlp.experts.gate_up_proj"].shape == (7, 40, 48)
    assert names["model.layers.2.mlp.experts.down_proj"].shape == (7, 48, 20)
    assert not any(
        "gate_up_proj" in name for name in load_file(written(tmp_path, "qwen3_next")[0] / "model.safetensors")
    )


def test_experts_of_qwen3_next_may_be_stacked(tmp_path: Path) -> None:
    folder, tensors = written(tmp_path, "qwen3_next")

    def stack(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        kept = {name: tensor for name, tensor in state.items() if ".experts." not in name}
        for i in (0, 2, 3):
            prefix = f"model.layers.{i}.mlp.experts."
            each = [[state[f"{prefix}{e}.{x}_proj.weight"] for x in ("gate", "up", "down")] for e in range(7)]
            kept[prefix + "gate_up_proj"] = torch.stack([torch.cat(parts[:2]) for parts in each])
            kept[prefix + "down_proj"] = torch.stack([parts[2] for parts in each])
        return kept

    edit(folder, stack)
    assert same(everything(open_checkpoint(folder)), tensors)


def test_one_missing_expert_is_named(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "qwen3_next")
    edit(folder, lambda state: {k: v for k, v in state.items() if "layers.2.mlp.experts.4.up_proj" not in k})
    with pytest.raises(TensorMismatchError, match=r"missing: model\.layers\.2\.mlp\.experts\.4\.up_proj\.weight"):
        open_checkpoint(folder)


@EVERY
def test_files_of_vision_models(family: str, tmp_path: Path) -> None:
    """The published form: another prefix, parts that no text is made with, the config under `text_config`."""
    folder, tensors = written(tmp_path, family)
    config = open_checkpoint(folder).config

    def wrap(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in state.items()}
        other = {"mtp.fc.weight": torch.ones(3, 5), "model.visual.blocks.0.norm1.weight": torch.ones(2).to(torch.int8)}
        return {**renamed, **other, "visual.patch_embed.proj.bias": torch.ones(7)}

    edit(folder, wrap)
    wrapper = {"qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe"}.get(family)
    if wrapper:
        text = json.loads((folder / "config.json").read_text())
        text["rope_parameters"] |= {"mrope_interleaved": True, "mrope_section": [1, 2, 1]}
        tied = text.pop("tie_word_embeddings")
        whole = {"model_type": wrapper, "text_config": text, "vision_config": {"depth": 2}, "tie_word_embeddings": tied}
        (folder / "config.json").write_text(json.dumps(whole))
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == config
    assert same(everything(checkpoint), tensors)


def test_both_prefixes_at_once_are_refused(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "qwen3_5_text")
    edit(folder, lambda state: {**state, "model.language_model.norm.weight": torch.ones(48)})
    with pytest.raises(CorruptFileError, match=r"model\.norm\.weight is in both"):
        open_checkpoint(folder)


def test_decays_in_float32_beside_bfloat16(tmp_path: Path) -> None:
    folder, tensors = written(tmp_path, "qwen3_5_moe_text")
    wide = ("A_log", "linear_attn.norm.weight")
    edit(folder, lambda state: {k: v if k.endswith(wide) else v.bfloat16() for k, v in state.items()})
    found = everything(open_checkpoint(folder))
    exact = ("mixer.decay_log", "mixer.gate_norm.weight")
    assert same(found, {k: v if k.endswith(exact) else v.bfloat16().float() for k, v in tensors.items()})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("model.layers.2.mlp.experts.down_proj", "layers.2.ffn.down"),
        ("model.layers.1.linear_attn.in_proj_z.weight", "layers.1.mixer.proj.weight"),
    ],
)
def test_values_that_are_not_finite(value: float, theirs: str, ours: str, tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "qwen3_5_moe_text")

    def spoil(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        state[theirs].view(-1)[-3] = value
        return state

    edit(folder, spoil)
    with pytest.raises(CorruptFileError, match=f"{ours} .*NaN or infinite"):
        list(open_checkpoint(folder).tensors(torch.bfloat16))


def test_a_sum_that_overflows_is_no_fault(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "qwen3_5_text")
    edit(folder, lambda state: {**state, "model.embed_tokens.weight": torch.full((97, 48), 60_000.0)})
    found = dict(open_checkpoint(folder).tensors(torch.float16))
    assert found["embed.weight"].sum() == float("inf")


@pytest.mark.parametrize(
    ("family", "drop", "expected"),
    [
        ("clover_moe", "layers.1.linear_attn.bd_softmax_history_c", "layers 0, 2 have all four; layers 1 lack"),
        ("clover_moe", "layers.0.linear_attn.bd", "layers 0 lack bd_softmax_logit_scale, bd_softmax_history_bias"),
        ("clover_moe", "conv_right_weight", "layers 0-2 lack conv_right_weight"),
    ],
)
def test_missing_preview_tensors(family: str, drop: str, expected: str, tmp_path: Path) -> None:
    folder, _ = written(tmp_path, family)
    edit(folder, lambda state: {k: v for k, v in state.items() if drop not in k})
    with pytest.raises(TensorMismatchError, match=expected) as caught:
        open_checkpoint(folder)
    assert "needs all four" in str(caught.value)
    assert "set model_type to qwen3_5_moe_text" in str(caught.value)


def test_preview_tensors_in_a_model_that_has_none(tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "qwen3_5_moe_text")
    extra = {"model.layers.2.linear_attn.conv_right_weight": torch.ones(124, 3)}
    edit(folder, lambda state: {**state, **extra})
    with pytest.raises(TensorMismatchError, match="layers 0-1 have none; layers 2 lack") as caught:
        open_checkpoint(folder)
    assert "set model_type to clover_moe and add mask_token_id" in str(caught.value)


def test_a_clover_without_its_four_tensors_is_a_qwen(tmp_path: Path) -> None:
    folder, tensors = written(tmp_path, "clover_moe")
    edit(folder, lambda state: {k: v for k, v in state.items() if "bd_softmax" not in k and "conv_right" not in k})
    reconfigure(folder, model_type="qwen3_5_moe_text")
    checkpoint = open_checkpoint(folder)
    assert same(everything(checkpoint), {k: v for k, v in tensors.items() if not k.startswith("adapter.")})


def test_preview_tensors_of_other_families_are_none(tmp_path: Path) -> None:
    assert open_checkpoint(written(tmp_path, "qwen3_next")[0]).preview_tensors(torch.float32) == {}


def test_preview_tensors_have_the_adapters_names(tmp_path: Path) -> None:
    previews = open_checkpoint(written(tmp_path, "clover_moe")[0]).preview_tensors(torch.bfloat16)
    kinds = {"right": (124, 3), "logit_scale": (6,), "history_bias": (6,), "history_c": (6,)}
    shapes = {f"layers.{i}.preview.{kind}": shape for i in range(3) for kind, shape in kinds.items()}
    assert {name: tuple(tensor.shape) for name, tensor in previews.items()} == shapes
    assert {tensor.dtype for tensor in previews.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    "changes",
    [
        {"delta_net": {"key_heads": 2, "value_heads": 6, "key_dim": 10, "value_dim": 14, "conv_width": 3}},
        {"experts": {"count": 7, "top_k": 2, "size": 20, "shared_size": 26}},
        {"experts": {"count": 7, "top_k": 3, "size": 20, "shared_size": 26, "renormalise": False}},
        {"output_gate": False},
        {"mixers": ("delta_net", "delta_net", "attention", "delta_net")},
    ],
)
def test_the_fingerprint_tells_hybrids_apart(changes: dict[str, Any], tmp_path: Path) -> None:
    base = open_checkpoint(written(tmp_path / "a", "qwen3_5_moe_text")[0])
    other = open_checkpoint(written(tmp_path / "b", "qwen3_5_moe_text", **changes)[0])
    assert base.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("tensor", ["A_log", "dt_bias", "conv1d.weight", "norm.weight"])
def test_the_fingerprint_covers_the_delta_net(tensor: str, tmp_path: Path) -> None:
    folder, _ = written(tmp_path, "qwen3_5_text")
    before = open_checkpoint(folder).fingerprint()
    name = f"model.layers.2.linear_attn.{tensor}"
    edit(folder, lambda state: {**state, name: state[name] + 1})
    assert open_checkpoint(folder).fingerprint() != before


@EVERY
def test_hybrids_have_no_gguf_names(family: str) -> None:
    with pytest.raises(UnsupportedModelError, match="take the safetensors version"):
        list(targets(tiny_hybrid(family), "gguf"))


@pytest.mark.parametrize(
    ("family", "changes", "what"),
    [
        (
            "qwen3_5_text",
            {"feed_forwards": ("experts",) * 4, "experts": {"count": 3, "top_k": 1, "size": 5}},
            "experts",
        ),
        ("clover_moe", {"feed_forwards": ("dense",) * 4}, "dense"),
        ("llama", {"qk_norm": False}, "output_gate"),
    ],
)
def test_what_a_family_lacks_is_refused(family: str, changes: dict[str, Any], what: str) -> None:
    if family == "llama":
        changes = {**changes, "mixers": ("attention",) * 4, "feed_forwards": ("dense",) * 4}
    with pytest.raises(UnsupportedModelError, match=what):
        list(targets(tiny_hybrid(family, **changes), "hf"))
