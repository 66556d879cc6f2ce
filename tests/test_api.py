"""Loading a folder and asking it, through the public interface."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import trifolium
from tiny_engine import adapter_config, build_adapter, write_folder
from trifolium.api import split_options
from trifolium.checkpoint import save_adapter
from trifolium.config import DecodeConfig, SamplingParams
from trifolium.errors import AdapterMismatchError, ConfigError, NotFoundError, PromptError, TensorMismatchError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("api") / "tiny").path


@pytest.fixture(scope="module", params=["float32", "int8"])
def lm(folder: Path, request: pytest.FixtureRequest) -> trifolium.LM:
    return trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype=request.param)


def test_modes_agree_and_the_result_knows_the_model(lm):
    verified = lm.generate("Hello there", max_tokens=20, free_rows=True)
    assert verified.token_ids == lm.generate("Hello there", max_tokens=20, mode="ar").token_ids
    assert verified.model == "tiny" and verified.load_seconds == lm.load_seconds > 0
    assert verified.mode == "verified" and verified.drafts == "both"
    assert lm.generate("Hello there", max_tokens=20, mode="diffusion").tokens <= 20


def test_prompts_as_text_messages_and_ids(lm):
    text = lm.encode("Hi", system="Be brief")
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    assert text == lm.encode(messages)
    assert lm.tokenizer.decode(text).endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert lm.encode([1, 2, 3]) == [1, 2, 3]
    for empty in ("", "  \n", []):
        with pytest.raises(PromptError, match="empty"):
            lm.generate(empty)
    with pytest.raises(PromptError, match="context of 400"):
        lm.generate("x" * 500)


def test_streams_tell_the_whole_answer_and_can_be_left(lm):
    events = list(lm.stream("Hello", max_tokens=12, free_rows=True))
    assert "".join(e.text for e in events if isinstance(e, trifolium.TextEvent)) == events[-1].result.text
    assert events[-1].result.model == "tiny"
    assert any(isinstance(e, trifolium.CanvasEvent) for e in events)
    left = lm.stream("Hello", max_tokens=12)
    next(left)
    left.close()
    assert not lm.engine.step()  # nothing is left running
    assert lm.generate("Hello", max_tokens=12).token_ids == events[-1].result.token_ids


def test_two_streams_side_by_side(lm):
    alone = [lm.generate(prompt, max_tokens=10).text for prompt in ("Hello", "Goodbye")]
    streams = [lm.stream(prompt, max_tokens=10) for prompt in ("Hello", "Goodbye")]
    texts = ["", ""]
    while streams[0] is not None or streams[1] is not None:
        for i in (0, 1):
            event = next(streams[i], None) if streams[i] is not None else None
            if event is None:
                streams[i] = None
            elif isinstance(event, trifolium.TextEvent):
                texts[i] += event.text
    assert texts == alone


def test_options_are_sorted_and_checked(lm):
    assert split_options({"seed": 3, "mode": "ar", "top_p": 0.5}) == (
        SamplingParams(seed=3, top_p=0.5),
        DecodeConfig(mode="ar"),
    )
    with pytest.raises(ConfigError, match=r"unknown options: temprature .*temperature"):
        lm.generate("Hi", temprature=1.0)
    with pytest.raises(ConfigError, match="max_tokens"):
        lm.generate("Hi", max_tokens=0)
    with pytest.raises(ConfigError, match="unknown dtype 'int3'"):
        trifolium.load("smollm2-135m", dtype="int3")


def test_loading_fills_what_the_file_holds(folder):
    """float32 loading keeps every weight as the file has it; packed products need no plain copy."""
    loaded = trifolium.load(folder, adapter=None, dtype="float32").model
    for name, tensor in trifolium.checkpoint.open_checkpoint(folder).tensors(torch.float32):
        module = loaded.get_submodule(name.rpartition(".")[0])
        if hasattr(module, "kernel"):  # one input after the other brings the weight to light
            columns = module.kernel(torch.eye(tensor.shape[1]), 0, None)
            assert torch.equal(columns.T[: len(tensor)], tensor)
        else:
            assert torch.equal(module.weight, tensor)
    plain = sum(m.weight.numel() for m in loaded.modules() if hasattr(m, "kernel"))
    assert plain == 0
    assert loaded.adapter is None


def test_adapters_that_do_not_fit(folder, tmp_path):
    other = write_folder(tmp_path / "other", seed=1)
    norms = dict(other.tensors(torch.float32))
    with pytest.raises(NotFoundError, match="no such adapter"):
        trifolium.load(folder, adapter=tmp_path / "none.safetensors")
    config = trifolium.load(folder, adapter=None).model.config
    generator = torch.Generator().manual_seed(0)
    tensors = dict(build_adapter(config, 6, generator, 0.1).named_parameters())
    save_adapter(tmp_path / "foreign.safetensors", adapter_config(config, 6, "0" * 64), tensors)
    with pytest.raises(AdapterMismatchError, match="tiny"):
        trifolium.load(folder, adapter=tmp_path / "foreign.safetensors")
    fingerprint = trifolium.checkpoint.open_checkpoint(folder).fingerprint()
    tensors.pop("mask_embedding")
    save_adapter(tmp_path / "partial.safetensors", adapter_config(config, 6, fingerprint), tensors)
    with pytest.raises(TensorMismatchError, match="mask_embedding"):
        trifolium.load(folder, adapter=tmp_path / "partial.safetensors")
    assert norms


def test_training_can_follow_generation(folder):
    """What a generation leaves in the model, such as rotary tables, is usable with gradients."""
    lm = trifolium.load(folder, adapter=folder / "adapter.safetensors", dtype="float32")
    lm.generate("Hello", max_tokens=4)
    cos, _ = lm.model.rope(torch.arange(3), 3)
    assert not cos.is_inference()
