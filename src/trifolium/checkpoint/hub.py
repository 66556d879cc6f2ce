"""Models from the hub, through huggingface_hub: only the files that a model is read from."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import DownloadError

# Never pickles; the licence and README are read for `models show`.
_PATTERNS = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "README.md",
    "LICENSE*",
)
_ANSWER_SECONDS = 3.0  # a hub that doesn't answer by then counts as out of reach
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}")


def is_hub_id(source: str) -> bool:
    """Whether `source` has the form owner/name."""
    return _ID.fullmatch(source) is not None


def is_offline() -> bool:
    """Whether the user told huggingface_hub to stay off the network (HF_HUB_OFFLINE)."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def fetch(repo: str, *, revision: str | None = None, folder: Path | None = None, progress: bool = True) -> Path:
    """Download a model into `folder`, or into huggingface_hub's own cache, and return where it lies.

    What is there already is not fetched again, and an interrupted file is resumed. When the hub gives no answer within
    a few seconds, its cache answers (without `folder`). Raises DownloadError with the hub's reason.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import tqdm

    class Silent(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})

    options = {"revision": revision, "local_dir": folder, "allow_patterns": list(_PATTERNS)}
    # huggingface_hub lets errors of several HTTP libraries through; here all of them mean that this source failed.
    try:
        # snapshot_download has no limit on its first question, and a network that swallows packets has no end.
        HfApi().model_info(repo, revision=revision, timeout=_ANSWER_SECONDS)
    except Exception as error:
        if folder is None:
            with suppress(Exception):
                return Path(snapshot_download(repo, **options, local_files_only=True))
        raise DownloadError(f"the hub gave no {repo}: {_reason(error)}") from None
    try:
        return Path(snapshot_download(repo, **options, tqdm_class=None if progress else Silent))
    except Exception as error:
        raise DownloadError(f"the hub's {repo} is not complete yet: {_reason(error)}; try again to resume") from None


def _reason(error: Exception) -> str:
    """The first line that says something, without the advice that follows it."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
