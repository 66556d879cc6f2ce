"""Reasoning and content, however an answer is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trifolium.text.reasoning import ReasoningSplitter

CASES = [
    (False, "Hello\n\nthere", "", "Hello\n\nthere"),
    (False, "<think>\nwhy?\nso.\n</think>\n\nYes.\n", "why?\nso.", "Yes.\n"),
    (False, "\n<think>a</think>b", "a", "b"),
    (False, "<think></think>b", "", "b"),
    (False, "<think>\n\n</think>\n\nb", "", "b"),
    (False, "<think>never closed\n", "never closed\n", ""),
    (False, "say <think>x</think>", "", "say <think>x</think>"),
    (False, "<thin", "", "<thin"),
    (False, "  <b>", "", "  <b>"),
    (True, "why?\n</think>\n\nYes </think>", "why?", "Yes </think>"),
    (True, "a < b </thin", "a < b </thin", ""),
    (True, "\n\n</think>b", "", "b"),
    (True, "", "", ""),
]


def split(thinking: bool, pieces: list[str]) -> tuple[str, str]:
    splitter = ReasoningSplitter(thinking)
    parts = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    return "".join(r for r, _ in parts), "".join(c for _, c in parts)


@pytest.mark.parametrize("thinking, text, reasoning, content", CASES)
def test_whole_and_by_the_character(thinking, text, reasoning, content):
    assert split(thinking, [text]) == (reasoning, content)
    assert split(thinking, list(text)) == (reasoning, content)


@given(
    st.booleans(),
    st.lists(st.sampled_from(["<think>", "</think>", "\n", "a", "<", "</", "think>", " "]), max_size=9),
    st.data(),
)
def test_cuts_change_nothing(thinking, parts, data):
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(thinking, pieces) == split(thinking, [text])
