"""Fixtures of the decisions' tests: a tiny model from disk, and a few questions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import trifolium
from tiny_engine import write_folder
from trifolium import LM, Question


@pytest.fixture(scope="session")
def load_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LM]:
    """A random model with room for some 6,000 bytes of text, loaded once for each dtype."""
    folder = tmp_path_factory.mktemp("decide") / "tiny"
    write_folder(folder, max_positions=6000, with_adapter=False)
    loaded: dict[str, LM] = {}

    def get(dtype: str = "int8") -> LM:
        if dtype not in loaded:
            loaded[dtype] = trifolium.load(folder, adapter=None, dtype=dtype)
        return loaded[dtype]

    return get


@pytest.fixture(scope="session")
def questions() -> list[Question]:
    return [
        Question.noul("spam", "Is it advertising?"),
        Question.noul("refund", "Is money wanted back?", yes="It is.", no="It isn't."),
        Question.choice("tone", "Which tone?", {"angry": "hostile", "calm": ""}),
        Question.choice("team", "Whose is it?", ["sales", "help", True, "true"]),
        Question.score("urgency", "How urgent?", ["can wait", "this week", "today"]),
    ]
