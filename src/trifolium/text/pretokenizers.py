"""How byte-level BPE vocabularies in GGUF files cut text into words, by the name that the file gives.

A GGUF file holds no split pattern, only a name (`tokenizer.ggml.pre`); what it means is a convention of llama.cpp.
Each scheme is a list of patterns in Oniguruma syntax. Every pattern cuts the pieces that the one before it left:
matches and the text between them both become pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnsupportedModelError

__all__ = ["SplitScheme", "known_schemes", "split_scheme"]


@dataclass(frozen=True)
class SplitScheme:
    """`whole_words`: a word that is in the vocabulary is that token, whatever the merges say.

    `add_bos`: whether such vocabularies begin a text with BOS when the file doesn't say.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_SUFFIX = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_THREE_DIGITS = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}"
_ONE_DIGIT = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_SYMBOLS}|{_SPACES}"
_ONE_DIGIT_WITH_MARKS = (
    rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
# A word of capitals and small letters, as llama.cpp reads these vocabularies: only ASCII letters have a case.
_UPPER, _LOWER = r"(?=\p{L})[^a-z]", r"(?=\p{L})[^A-Z]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?(?:{_UPPER})*(?:{_LOWER})+{{suffix}}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?(?:{_UPPER})+(?:{_LOWER})*{{suffix}}"
    rf"|{{digits}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_TEKKEN = _CASED.replace("{suffix}", "").replace("{digits}", r"\p{N}")
_GPT4O = _CASED.replace("{suffix}", f"{_SUFFIX}?").replace("{digits}", r"\p{N}{1,3}")

_SCHEMES: tuple[tuple[SplitScheme, str], ...] = (
    (SplitScheme((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")), "default"),
    (SplitScheme((_GPT2,)), "gpt-2 phi-2 olmo mpt jina-es jina-de gigachat"),
    (SplitScheme((r"\p{N}", _GPT2)), "smollm starcoder refact command-r codeshell exaone minerva-7b"),
    (
        SplitScheme((_THREE_DIGITS,), whole_words=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral",
    ),
    (SplitScheme((_THREE_DIGITS,)), "dbrx smaug-bpe"),
    (SplitScheme((_ONE_DIGIT,)), "qwen2 deepseek-r1-qwen stablelm2"),
    (SplitScheme((_ONE_DIGIT_WITH_MARKS,)), "qwen35"),
    (SplitScheme((_TEKKEN,), whole_words=True), "tekken"),
    (SplitScheme((_GPT4O,)), "gpt-4o llama4"),
)


def known_schemes() -> tuple[str, ...]:
    """The names that `split_scheme` knows, sorted."""
    return tuple(sorted(name for _, names in _SCHEMES for name in names.split()))


def split_scheme(name: str) -> SplitScheme:
    """The scheme that a GGUF file calls `name`; raises UnsupportedModelError, which lists the known names."""
    for scheme, names in _SCHEMES:
        if name in names.split():
            return scheme
    raise UnsupportedModelError(
        f"the pre-tokenizer '{name}' (tokenizer.ggml.pre) is not supported; known ones: {', '.join(known_schemes())}"
    )
