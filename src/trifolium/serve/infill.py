"""`suffix` of /v1/completions: what belongs between two texts."""

from __future__ import annotations

from ..api import LM

FILL_IN_THE_MIDDLE = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
)
"""Special tokens of models that were trained to write towards a given end."""

TASK = "Write this text out in full. Put what belongs there in the place of [[gap]], and change nothing else."

SEEN = 40
"""Characters of the suffix that end the text once they come by themselves."""


def gap_prompt(lm: LM, prefix: str, suffix: str) -> tuple[list[int], tuple[str, ...]]:
    """Token ids to go on from, and what ends the text.

    Models that know special tokens for it are asked with them. Others are asked for the whole text, are given its
    beginning, and are stopped where they come to the suffix.
    """
    for marks in FILL_IN_THE_MIDDLE:
        ids = [lm.tokenizer.encode(mark) for mark in marks]
        if all(len(one) == 1 and one[0] in lm.tokenizer.special_ids for one in ids):
            before, after = (lm.tokenizer.encode(text, special=False) for text in (prefix, suffix))
            return [*ids[0], *before, *ids[1], *after, *ids[2]], ()
    message = f"{TASK}\n\n{prefix}[[gap]]{suffix}"
    begun = lm.encode(message, template={"enable_thinking": False})
    end = suffix[:SEEN]
    return begun + lm.tokenizer.encode(prefix, special=False), (end,) if end.strip() else ()
