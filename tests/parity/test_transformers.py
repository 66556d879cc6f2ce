"""Files that transformers saved, opened by us: the logits are those of transformers' own forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from random_models import random_tokens, randomise
from trifolium.checkpoint import open_checkpoint
from trifolium.checkpoint.hf_config import config_from_hf
from trifolium.config import ModelConfig, RopeConfig
from trifolium.model import Transformer

LENGTH = 64
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
}
SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 14,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
ROPES: dict[str, dict[str, Any]] = {
    "theta": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": YARN,
    "yarn-untruncated": {**YARN, "truncate": False},
    "yarn-betas": {**YARN, "beta_fast": 2.0, "beta_slow": 0.5},
    "yarn-attention-factor": {**YARN, "attention_factor": 1.4},
    "yarn-mscales": {**YARN, "mscale": 0.7, "mscale_all_dim": 2.0},
    "yarn-mscale-alone": {**YARN, "mscale": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True}),
    ("llama", {"mlp_bias": True}),
    ("llama", {"head_dim": None}),
    ("llama", {"num_key_value_heads": 6}),
    ("llama", {"num_key_value_heads": 1, "rms_norm_eps": 0.1}),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {}),
    ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
]


def theirs(family: str, **changes: Any) -> Any:
    """transformers' model with every weight, norms and biases included, random."""
    make_config, make_model = FAMILIES[family]
    model = make_model(make_config(**{**SIZES, **changes})).eval().requires_grad_(False)
    randomise(model, 5)
    return model


def ours(path: Path) -> Transformer:
    """Our model of the files, every parameter of it filled by exactly one tensor."""
    checkpoint = open_checkpoint(path)
    model = Transformer(checkpoint.config).requires_grad_(False)
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.fill_(torch.nan)
    for name, tensor in checkpoint.tensors(torch.float32):
        parameters[name].copy_(tensor)
    return model


def logits(model: Transformer, tokens_BT: torch.Tensor) -> torch.Tensor:
    hidden: torch.Tensor = model.head(model.commit_stream(tokens_BT)[0])
    return hidden


def sequences(length: int = LENGTH) -> torch.Tensor:
    return torch.tensor(random_tokens(ModelConfig.model_construct(vocab_size=97), 2 * length)).view(2, length)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("family", "changes"), OPTIONS, ids=lambda x: x if isinstance(x, str) else "-".join(x))
def test_every_option_of_every_family(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    reference = theirs(family, **changes)
    reference.save_pretrained(tmp_path)
    tokens = sequences()
    assert same(logits(ours(tmp_path), tokens), reference(tokens).logits)


@pytest.mark.parametrize("kind", ROPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_rope_scaling(family: str, kind: str, tmp_path: Path) -> None:
    rope = {"rope_theta": 10_000.0, **ROPES[kind]}
    # Dynamic scaling follows the length in transformers and the longest position here: they meet at that length.
    positions = LENGTH // 2 if kind == "dynamic" else LENGTH
    reference = theirs(family, rope_parameters=rope, max_position_embeddings=positions)
    reference.save_pretrained(tmp_path)
    model = ours(tmp_path)
    assert model.config.max_positions == LENGTH
    tokens = sequences()
    expected = reference(tokens).logits
    assert same(logits(model, tokens), expected)
    plain = Transformer(model.config.model_copy(update={"rope": RopeConfig()})).requires_grad_(False)
    plain.load_state_dict(model.state_dict())
    assert (logits(plain, tokens) - expected).abs().max() > 0.01, "the scaling made no difference to this test"


def test_yarn_kinds_differ_from_each_other() -> None:
    """Each variant of yarn above gives other tables, so the test above tells them apart."""
    base = {**SIZES, "model_type": "llama"}
    tables = {}
    for kind, rope in ROPES.items():
        if kind.startswith("yarn") and kind != "yarn-mscale-alone":  # alone, it is ignored
            config = config_from_hf({**base, "rope_parameters": rope}, "test")
            tables[kind] = Transformer(config).rope(torch.arange(LENGTH), LENGTH)[0]
    names = list(tables)
    for i, a in enumerate(names):
        for b in names[:i]:
            assert (tables[a] - tables[b]).abs().max() > 1e-3, (a, b)


def test_positions_far_out() -> None:
    """Angles at large positions have the same float32 values as theirs."""
    reference = theirs("llama", max_position_embeddings=100_000)
    config = ModelConfig.parse(
        {"family": "llama", "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_layers": 1}
        | {"num_heads": 6, "num_kv_heads": 2, "head_dim": 14, "max_positions": 100_000},
        "test",
    )
    positions = torch.tensor([0, 1, 1023, 1024, 65_537, 99_999])
    cos, sin = Transformer(config).rope(positions, 100_000)
    their_cos, their_sin = reference.model.rotary_emb(torch.zeros(1), positions[None])
    assert torch.equal(torch.cat((cos, cos), -1), their_cos[0])
    assert torch.equal(torch.cat((sin, sin), -1), their_sin[0])


def write_gguf(path: Path, model: Any, family: str) -> Path:
    """The transformers model as a GGUF file; llama files interleave the two halves of rotary heads."""
    config = model.config
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    layer_names = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for i in range(config.num_hidden_layers):
        names |= {f"model.layers.{i}.{hf}": f"blk.{i}.{name}" for hf, name in layer_names.items()}
    for key, tensor in model.state_dict().items():
        module, kind = key.rsplit(".", 1)
        array = tensor.numpy()
        if family == "llama" and module.endswith(("q_proj", "k_proj")):
            heads = len(array) // config.head_dim
            pairs = array.reshape(heads, 2, config.head_dim // 2, -1).swapaxes(1, 2)
            array = np.ascontiguousarray(pairs.reshape(array.shape))
        writer.add_tensor(f"{names[module]}.{kind}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf(family: str, tmp_path: Path) -> None:
    reference = theirs(family, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    model = ours(write_gguf(tmp_path / "tiny.gguf", reference, family))
    tokens = sequences()
    assert same(logits(model, tokens), reference(tokens).logits)
