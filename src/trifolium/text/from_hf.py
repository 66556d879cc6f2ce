"""A tokenizer from a Hugging Face folder, with the ids that `transformers` would give."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from ..errors import CorruptFileError, NotFoundError, UnsupportedModelError
from .scored import SPACE
from .vocabulary import AddedToken, PlainEncoder, Vocabulary, byte_alphabet

__all__ = ["read_hf"]


def read_hf(folder: Path) -> Vocabulary:
    """The vocabulary of a folder. Raises what `Tokenizer.from_hf` says."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise NotFoundError(f"{folder} holds no tokenizer.json")
    spec = _read_json(path)
    config, generation = _read_json(folder / "tokenizer_config.json"), _read_json(folder / "generation_config.json")
    special_map = _read_json(folder / "special_tokens_map.json")
    model = spec.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        raise UnsupportedModelError(f"{path}: the tokenizer model '{kind}' is not supported; known ones: BPE")
    added = tuple(_added_tokens(spec, path))
    vocab: dict[str, int] = model.get("vocab", {})
    pieces = _pieces(spec, vocab, added)

    def token_id(name: str) -> int | None:
        text = _token_text(config.get(f"{name}_token")) or _token_text(special_map.get(f"{name}_token"))
        return None if text is None else next((token.id for token in added if token.text == text), vocab.get(text))

    eos_id, bos_id = token_id("eos"), token_id("bos")
    listed = generation.get("eos_token_id", [])
    eos_ids = {int(index) for index in (listed if isinstance(listed, list) else [listed]) if index is not None}
    before, after = _frame(path, spec)
    return Vocabulary(
        pieces=pieces,
        encode_plain=_encoder(path, spec, added),
        added=added,
        special_ids=frozenset(token.id for token in added if token.special),
        eos_ids=frozenset(eos_ids | ({eos_id} if eos_id is not None else set())),
        eos_id=eos_id,
        bos_id=bos_id,
        eot_id=token_id("eot"),
        pad_id=token_id("pad"),
        unk_id=token_id("unk"),
        add_bos=bool(config.get("add_bos_token", bos_id is not None and bos_id in before)),
        add_eos=bool(config.get("add_eos_token", eos_id is not None and eos_id in after)),
        chat_template=_chat_template(folder, config),
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFileError(f"{path} is not readable as JSON: {error}") from None
    if not isinstance(value, dict):
        raise CorruptFileError(f"{path} should hold a JSON object")
    return value


def _token_text(entry: Any) -> str | None:
    """Special tokens are written as their text, or as an object with a `content`."""
    text = entry.get("content") if isinstance(entry, dict) else entry
    return text if isinstance(text, str) else None


def _added_tokens(spec: Mapping[str, Any], path: Path) -> Iterator[AddedToken]:
    try:
        for entry in spec.get("added_tokens") or ():
            yield AddedToken(
                int(entry["id"]),
                str(entry["content"]),
                bool(entry.get("special", False)),
                bool(entry.get("lstrip", False)),
                bool(entry.get("rstrip", False)),
                bool(entry.get("single_word", False)),
            )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(f"{path}: an entry of added_tokens is malformed: {error!r}") from None


def _load(path: Path, spec: Mapping[str, Any]) -> Backend:
    try:
        return Backend.from_str(json.dumps(spec))
    except Exception as error:  # the library raises bare Exceptions
        raise CorruptFileError(f"{path} is not a usable tokenizer: {error}") from None


def _encoder(path: Path, spec: Mapping[str, Any], added: tuple[AddedToken, ...]) -> PlainEncoder:
    """Encoders for text without added tokens: we find those ourselves, since only we know which text to trust."""
    model = dict(spec["model"])
    used = {
        part for merge in model.get("merges", ()) for part in (merge.split(" ") if isinstance(merge, str) else merge)
    }
    special = {token.text for token in added if token.special} - used - {model.get("unk_token")}
    # Special tokens stay out, so that no word can be one of them (`ignore_merges` would look them up).
    model["vocab"] = {text: index for text, index in model.get("vocab", {}).items() if text not in special}
    bare = {**spec, "model": model, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    at_start = _load(path, bare)
    later = at_start
    if _find(spec.get("pre_tokenizer"), "prepend_scheme", "first"):
        later = _load(
            path, {**bare, "pre_tokenizer": _replace(spec["pre_tokenizer"], "prepend_scheme", "first", "never")}
        )

    def encode(text: str, first: bool) -> list[int]:
        return list((at_start if first else later).encode(text, add_special_tokens=False).ids)

    return encode


def _frame(path: Path, spec: Mapping[str, Any]) -> tuple[list[int], list[int]]:
    """The ids that the post-processor puts before and after a text."""
    if not spec.get("post_processor"):
        return [], []
    encoding = _load(path, spec).encode("a")
    places = [place for place, masked in enumerate(encoding.special_tokens_mask) if not masked]
    if not places:
        return [], []
    return list(encoding.ids[: places[0]]), list(encoding.ids[places[-1] + 1 :])


def _pieces(spec: Mapping[str, Any], vocab: Mapping[str, int], added: tuple[AddedToken, ...]) -> list[bytes]:
    pieces = [b""] * (1 + max([*vocab.values(), *(token.id for token in added)], default=-1))
    if any(_find(spec.get(part), "type", "ByteLevel") for part in ("decoder", "pre_tokenizer", "normalizer")):
        alphabet = byte_alphabet()
        for text, index in vocab.items():
            known = all(character in alphabet for character in text)
            pieces[index] = bytes(alphabet[character] for character in text) if known else text.encode()
    elif spec["model"].get("byte_fallback"):
        for text, index in vocab.items():
            byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
            pieces[index] = bytes.fromhex(text[3:5]) if byte else text.replace(SPACE, " ").encode()
    else:
        raise UnsupportedModelError(
            "this BPE tokenizer is neither byte-level nor has byte fallback, so its tokens have no exact bytes"
        )
    for token in added:
        pieces[token.id] = token.text.encode()
    return pieces


def _find(part: Any, key: str, value: str) -> bool:
    if isinstance(part, dict):
        return part.get(key) == value or any(_find(inner, key, value) for inner in part.values())
    return isinstance(part, list) and any(_find(inner, key, value) for inner in part)


def _replace(part: Any, key: str, value: str, new: str) -> Any:
    if isinstance(part, dict):
        return {
            name: new if name == key and inner == value else _replace(inner, key, value, new)
            for name, inner in part.items()
        }
    return [_replace(inner, key, value, new) for inner in part] if isinstance(part, list) else part


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
