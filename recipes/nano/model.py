"""The nano model's parts: its tokenizer, its conversations, its shape, its weights on disk."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trifolium.config import ModelConfig, PreviewConfig
from trifolium.model import Adapter, Transformer
from trifolium.text import ChatTemplate, Tokenizer, encode_chat
from trifolium.train.data import Conversation, encode_corpus, is_held_out, read_corpus
from trifolium.train.vocabulary import MASK, SPECIALS, train_vocabulary

HERE = Path(__file__).parent
DATA = HERE / "conversations.jsonl.gz"
MASK_TOKEN = SPECIALS.index(MASK)


@dataclass(frozen=True)
class Data:
    """The tokenizer, and both splits of the conversations."""

    tokenizer: Tokenizer
    training: list[Conversation]
    held_out: list[Conversation]
    held_out_messages: list[list[dict[str, Any]]]
    """Prompts of the held-out conversations, without their answers."""


def without_system(item: dict[str, Any]) -> dict[str, Any]:
    """The conversation without its system turn: it is the same one everywhere, and says nothing."""
    return {**item, "messages": [m for m in item["messages"] if m["role"] != "system"]}


def load_data(folder: Path, vocab_size: int, max_length: int, limit: int | None = None) -> Data:
    """Read the conversations, with a tokenizer trained on them that is kept in `folder`."""
    items = [without_system(item) for item in read_corpus([DATA])][:limit]
    if not (folder / "tokenizer_config.json").exists():
        train_vocabulary((m["content"] for item in items for m in item["messages"]), vocab_size, folder)
    tokenizer = Tokenizer.from_hf(folder)
    template = ChatTemplate.of(tokenizer)
    end = tokenizer.eos_id
    assert end is not None

    def encode(messages: list[dict[str, Any]]) -> list[int]:
        return encode_chat(tokenizer, template, messages)

    def encode_text(text: str) -> list[int]:
        return tokenizer.encode(text, special=False)

    training, held_out = encode_corpus(items, encode, encode_text, end, max_length)
    prompts = [item["messages"][:-1] for item in items if is_held_out(item["messages"][0]["content"])]
    return Data(tokenizer, training, held_out, prompts)


def model_config(path: Path = HERE / "model.toml") -> ModelConfig:
    """The AR model's shape."""
    return ModelConfig.parse(tomllib.loads(path.read_text("utf-8")), str(path))


def toy(config: ModelConfig) -> ModelConfig:
    """A model of the same kind that trains in seconds and knows nothing."""
    sizes = {"vocab_size": 512, "hidden_size": 32, "num_layers": 4, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16}
    delta_net = {"key_heads": 1, "value_heads": 2, "key_dim": 16, "value_dim": 16}
    experts = {"count": 4, "top_k": 2, "size": 16, "shared_size": 16}
    layers = {"mixers": config.mixers[:4], "feed_forwards": config.feed_forwards[:4], "rope": {"rotary_dim": 8}}
    values = config.model_dump(mode="python", exclude_none=True)
    return ModelConfig.parse({**values, **sizes, **layers, "delta_net": delta_net, "experts": experts}, "toy model")


def clover_config(config: ModelConfig, block_size: int = 8) -> ModelConfig:
    """The same model as one that previews by itself."""
    preview = PreviewConfig(mask_token=MASK_TOKEN, block_size=block_size)
    return config.model_copy(update={"family": "clover_moe", "preview": preview})


def clover(config: ModelConfig, *, causal: bool = False) -> Transformer:
    """A model with fresh preview parameters, its other weights still to come."""
    model = Transformer(clover_config(config))
    adapter = Adapter.native(model.config, "nano")
    if causal:
        adapter = Adapter(adapter.config.model_copy(update={"delta_preview": "causal"}), model.config)
    model.adapter = adapter
    return model


def save_weights(path: Path, model: Transformer) -> None:
    """All weights as they are, atomically; a stage that has them is done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: p.detach().contiguous() for name, p in model.named_parameters()}
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata={"config": json.dumps(model.config.model_dump(mode="json"))})
    partial.replace(path)


def load_weights(path: Path, model: Transformer) -> Transformer:
    """Fill a model; weights that the file lacks (preview parameters of an AR model's) stay as they are."""
    given = load_file(path)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name in given:
                p.copy_(given.pop(name))
            elif not name.startswith("adapter."):
                raise SystemExit(f"{path} lacks {name}: remove the folder and start again")
    return model
