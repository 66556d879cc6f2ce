"""The default model against transformers on the same dequantised weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import trifolium
from trifolium.checkpoint import open_checkpoint, write_hf
from trifolium.evaluate.speed import read_prompts


@pytest.mark.real
def test_greedy_tokens_equal_those_of_transformers(default_gguf: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(default_gguf)
    write_hf(tmp_path / "hf", checkpoint.config, checkpoint.tensors(torch.float32))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    ours = trifolium.load(default_gguf, adapter=None, dtype="float32")
    end = sorted(ours.tokenizer.eos_ids)
    for prompt in read_prompts(None)[:20]:
        ids = torch.tensor([ours.encode(prompt)])
        with torch.inference_mode():
            out = theirs.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=10, do_sample=False, eos_token_id=end,
                pad_token_id=end[0],
            )  # fmt: skip
        expected = [token for token in out[0, ids.shape[1] :].tolist() if token not in end]
        assert list(ours.generate(prompt, mode="ar", max_tokens=10).token_ids) == expected
