"""Models whose sizes are known without their files: the config.json of each, in the package, under a name."""

from __future__ import annotations

import difflib
import json
from importlib import resources

from ..config import ModelConfig
from ..errors import NotFoundError
from .hf_config import config_from_hf

_FOLDER = "geometries"


def geometries() -> tuple[str, ...]:
    """The names, sorted."""
    files = resources.files("trifolium.checkpoint").joinpath(_FOLDER).iterdir()
    return tuple(sorted(file.name.removesuffix(".json") for file in files if file.name.endswith(".json")))


def geometry(name: str) -> ModelConfig:
    """The config of a model by name. Raises NotFoundError that lists the nearest names."""
    if name not in geometries():
        raise NotFoundError(f"no sizes are known of {name!r}; nearest: {', '.join(nearest_geometries(name))}")
    file = resources.files("trifolium.checkpoint").joinpath(_FOLDER, f"{name}.json")
    return config_from_hf(json.loads(file.read_text("utf-8")), f"{_FOLDER}/{name}.json")


def nearest_geometries(name: str) -> list[str]:
    """Up to three names like `name`, or simply the first ones."""
    return difflib.get_close_matches(name.lower(), geometries(), n=3, cutoff=0.4) or list(geometries()[:3])
