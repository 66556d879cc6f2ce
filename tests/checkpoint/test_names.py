"""The name tables, held against transformers and the gguf package."""

from __future__ import annotations

import gguf
import pytest
import torch
from tiny_checkpoints import all_options, fused, hf_model, random_tensors, tiny_config

from trifolium.checkpoint.names import check_shapes, expected_shapes, join, split, targets
from trifolium.config import ModelConfig
from trifolium.errors import TensorMismatchError, UnsupportedModelError

OPTIONS = pytest.mark.parametrize("config", all_options(), ids=lambda c: f"{c.family}-{c.tie_embeddings}-{c.out_bias}")


@OPTIONS
def test_the_hf_side_names_exactly_the_tensors_of_transformers(config: ModelConfig) -> None:
    state = {name: tuple(tensor.shape) for name, tensor in hf_model(config).state_dict().items()}
    if config.tie_embeddings:
        del state["lm_head.weight"]
    assert {source.name: source.shape for target in targets(config, "hf") for source in target.sources} == state


@OPTIONS
def test_the_gguf_side_names_tensors_as_the_gguf_package_does(config: ModelConfig) -> None:
    architecture = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}
    theirs = gguf.get_tensor_name_map(architecture[config.family], config.num_layers)
    for ours, other in zip(targets(config, "hf"), targets(config, "gguf"), strict=True):
        for hf, name in zip(ours.sources, other.sources, strict=True):
            assert theirs.get_name(hf.name, (".weight", ".bias")) == name.name
            assert hf.shape == name.shape


@OPTIONS
@pytest.mark.parametrize("naming", ["hf", "gguf"])
def test_splitting_and_joining_is_a_round_trip(config: ModelConfig, naming: str) -> None:
    tensors = random_tensors(config)
    theirs = {}
    for target in targets(config, naming):
        theirs.update(split(target, tensors[target.name]))
    back = dict(
        join(target, torch.float32, lambda source, out: out.copy_(theirs.pop(source.name)))
        for target in targets(config, naming)
    )
    assert not theirs
    assert list(back) == list(tensors)
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


@OPTIONS
def test_shapes_are_those_of_the_parts_put_together_by_hand(config: ModelConfig) -> None:
    assert expected_shapes(config) == {k: tuple(v.shape) for k, v in fused(hf_model(config), config).items()}


def test_rotary_rows_are_marked_with_their_heads() -> None:
    target = next(target for target in targets(tiny_config(), "gguf") if target.name == "layers.1.mixer.qkv.weight")
    assert [(source.name, source.heads) for source in target.sources] == [
        ("blk.1.attn_q.weight", 6),
        ("blk.1.attn_k.weight", 2),
        ("blk.1.attn_v.weight", 0),
    ]


def test_every_fault_is_listed() -> None:
    wanted = {"a": (2, 3), "b": (4,), "c": (5,)}
    with pytest.raises(TensorMismatchError) as caught:
        check_shapes(wanted.items(), {"a": (3, 2), "b": (4,), "x": (1,), "ok": (9,)}, "file.bin", ignored={"ok"})
    message = str(caught.value)
    assert message.startswith("file.bin: 3 tensors")
    assert "missing: c [5]" in message
    assert "unexpected: x [1]" in message
    assert "mis-shaped: a is [3, 2], expected [2, 3]" in message
    assert "b [4]" not in message
    assert "ok" not in message


@pytest.mark.parametrize(("family", "flag"), [("qwen2", "qk_norm"), ("llama", "qk_norm"), ("qwen3", "mlp_bias")])
def test_a_tensor_that_the_family_lacks_is_refused(family: str, flag: str) -> None:
    with pytest.raises(UnsupportedModelError, match=flag):
        list(targets(tiny_config(family, **{flag: True}), "hf"))
