"""What invented conversations are about and how they are put: the lists of words.json."""

from __future__ import annotations

import json
import random
from importlib import resources
from typing import Any

WORDS: dict[str, Any] = json.loads(resources.files(__package__).joinpath("words.json").read_text("utf-8"))


def pick(chance: random.Random, name: str) -> Any:
    """One of a list."""
    return chance.choice(WORDS[name])
