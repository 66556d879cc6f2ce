"""A tokenizer from the metadata of a GGUF file, with the ids that llama.cpp would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from ..errors import CorruptFileError, UnsupportedModelError
from .pretokenizers import SplitScheme, split_scheme
from .scored import SPACE, ScoredPieces
from .vocabulary import AddedToken, PlainEncoder, Vocabulary, byte_alphabet

__all__ = ["read_gguf"]

_NO_BYTE = 0x100
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6  # tokenizer.ggml.token_type; 1 is normal and 5 unused

# Files often name only one EOS. These texts end an answer in every vocabulary that has them, as llama.cpp holds too.
_END_OF_ANSWER = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|return|>"}
    | {"<end_of_turn>", "<turn|>", "<|eot|>", "<EOT>", "_<EOT>", "<|endofturn|>", "<|end_of_turn|>"}
)


def read_gguf(source: Path | Mapping[str, Any]) -> Vocabulary:
    """The vocabulary of a GGUF file, or of its metadata. Raises what `Tokenizer.from_gguf` says."""
    fields = source if isinstance(source, Mapping) else _metadata(source)
    tokens = _strings(fields, "tokenizer.ggml.tokens")
    kind = str(fields.get("tokenizer.ggml.model", ""))
    types = [int(value) for value in fields.get("tokenizer.ggml.token_type", [1] * len(tokens))]
    if len(types) != len(tokens):
        raise CorruptFileError(f"the GGUF file has {len(tokens)} tokens but {len(types)} token types")
    # Some files list end tokens as normal ones; like this they can't be left in an answer's text.
    types = [_CONTROL if text in _END_OF_ANSWER else type_ for text, type_ in zip(tokens, types, strict=True)]
    if kind == "gpt2":
        scheme = split_scheme(str(fields.get("tokenizer.ggml.pre", "default")))
        encoder, pieces = _byte_level(fields, tokens, types, scheme)
        add_bos = scheme.add_bos
    elif kind == "llama":
        encoder, pieces = _sentencepiece(fields, tokens, types)
        add_bos = True
    else:
        raise UnsupportedModelError(
            f"the GGUF tokenizer model '{kind}' is not supported; "
            "known ones: gpt2 (byte-level BPE), llama (SentencePiece)"
        )
    return _assemble(fields, tokens, types, encoder, pieces, add_bos)


def _metadata(path: Path) -> Mapping[str, Any]:
    from ..checkpoint.gguf_header import read_header  # the one reader of this format; the rooms meet only here

    return read_header(path).plain_metadata()


def _assemble(
    fields: Mapping[str, Any],
    tokens: Sequence[str],
    types: Sequence[int],
    encoder: PlainEncoder,
    pieces: list[bytes],
    add_bos: bool,
) -> Vocabulary:
    def token_id(name: str, default: int | None = None) -> int | None:
        value = fields.get(f"tokenizer.ggml.{name}_token_id", default)
        # llama.cpp too goes on without a special token whose id lies outside the vocabulary
        return int(value) if value is not None and 0 <= int(value) < len(tokens) else None

    sentencepiece = fields.get("tokenizer.ggml.model") == "llama"
    eos_id = token_id("eos", 2 if sentencepiece else None)
    eot_id = token_id("eot")
    named = {index for index in (eos_id, eot_id, token_id("eom")) if index is not None}
    return Vocabulary(
        pieces=pieces,
        encode_plain=encoder,
        added=tuple(
            AddedToken(index, text, special=type_ != _USER_DEFINED)
            for index, (text, type_) in enumerate(zip(tokens, types, strict=True))
            if type_ in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ),
        special_ids=frozenset(index for index, type_ in enumerate(types) if type_ in (_UNKNOWN, _CONTROL)),
        eos_ids=frozenset(named | {index for index, text in enumerate(tokens) if text in _END_OF_ANSWER}),
        eos_id=eos_id,
        bos_id=token_id("bos", 1 if sentencepiece else None),
        eot_id=eot_id,
        pad_id=token_id("padding"),
        unk_id=token_id("unknown", 0 if sentencepiece else None),
        add_bos=bool(fields.get("tokenizer.ggml.add_bos_token", add_bos)),
        add_eos=bool(fields.get("tokenizer.ggml.add_eos_token", False)),
        chat_template=fields.get("tokenizer.chat_template"),
    )


def _byte_level(
    fields: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], scheme: SplitScheme
) -> tuple[PlainEncoder, list[bytes]]:
    alphabet = byte_alphabet()
    verbatim = (_UNKNOWN, _CONTROL, _USER_DEFINED)
    # Characters that are bytes in Latin-1, but none of the alphabet, must fail to be encoded.
    table = dict.fromkeys(range(256), _NO_BYTE) | {ord(character): byte for character, byte in alphabet.items()}
    pieces = [
        text.encode() if type_ in verbatim else _from_alphabet(text, table)
        for text, type_ in zip(tokens, types, strict=True)
    ]
    merges: list[tuple[str, str]] = []
    for merge in _strings(fields, "tokenizer.ggml.merges"):
        left, _, right = merge[1:].partition(" ")  # the left part may itself begin with a space, in odd files
        merges.append((merge[:1] + left, right))
    # Special tokens stay out, so that no sequence of merges can spell one.
    vocabulary = {text: index for index, text in enumerate(tokens) if types[index] not in (_UNKNOWN, _CONTROL)}
    # A byte may have no token. Then it is lost, but it must still part its neighbours: it gets an id for a moment.
    for spare, character in enumerate(alphabet, len(tokens)):
        vocabulary.setdefault(character, spare)
    try:
        backend = Backend(BPE(vocab=vocabulary, merges=merges, ignore_merges=scheme.whole_words))
    except Exception as error:  # the library raises bare Exceptions
        raise CorruptFileError(f"the GGUF file's merges don't fit its tokens: {error}") from None
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in scheme.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])

    def encode(text: str, first: bool) -> list[int]:
        return [index for index in backend.encode(text, add_special_tokens=False).ids if index < len(tokens)]

    return encode, pieces


def _from_alphabet(text: str, table: Mapping[int, int]) -> bytes:
    try:
        return text.translate(table).encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()  # a token that isn't written in the byte alphabet stands for itself


def _sentencepiece(
    fields: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> tuple[PlainEncoder, list[bytes]]:
    scores = [float(score) for score in fields.get("tokenizer.ggml.scores", ())]
    if len(scores) != len(tokens):
        raise CorruptFileError(f"the GGUF file has {len(tokens)} tokens but {len(scores)} scores")
    byte_ids = {_byte_of(text): index for index, text in enumerate(tokens) if types[index] == _BYTE}
    pieces = [
        bytes([_byte_of(text)])
        if type_ == _BYTE
        else (text if type_ == _CONTROL else text.replace(SPACE, " ")).encode()
        for text, type_ in zip(tokens, types, strict=True)
    ]
    mergeable = {
        text: (index, scores[index])
        for index, text in enumerate(tokens)
        if types[index] not in (_UNKNOWN, _CONTROL, _BYTE)
    }
    encoder = ScoredPieces(
        mergeable,
        byte_ids,
        int(fields.get("tokenizer.ggml.unknown_token_id", 0)),
        space_prefix=bool(fields.get("tokenizer.ggml.add_space_prefix", True)),
    )
    return encoder, pieces


def _byte_of(text: str) -> int:
    try:
        return int(text.removeprefix("<0x").removesuffix(">"), 16) & 0xFF
    except ValueError:
        raise CorruptFileError(f"the byte token '{text}' isn't written as <0xNN>") from None


def _strings(fields: Mapping[str, Any], key: str) -> list[str]:
    values = fields.get(key)
    if values is None or not all(isinstance(value, str) for value in values):
        raise CorruptFileError(
            f"the GGUF file has no usable list '{key}'; it may be truncated, or made without a tokenizer"
        )
    return list(values)
