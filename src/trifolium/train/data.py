"""Training conversations as token sequences, and the batches of every step.

A corpus is a JSON Lines file (optionally .gz): one object a line with `messages` (the last one the assistant's) and
`complete` (whether the answer reached its end). The split is by prompt: a conversation is held out when the sha256 of
its first user turn is 0 modulo HELD_OUT_EVERY, so that no rerun and no new file can move a prompt into training.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, CorruptFileError, NotFoundError

HELD_OUT_EVERY = 50

LENGTH_BUCKET = 64
"""Sequences are padded to whole buckets; one batch has one padded length."""

Encode = Callable[[list[dict[str, Any]]], list[int]]
"""Messages that end with a user turn -> prompt ids, up to where the answer starts."""


@dataclass(frozen=True)
class Conversation:
    """`tokens` [T] of one conversation; the answer starts at index `answer`, and ends in the end token if complete."""

    tokens: NDArray[np.int64]
    answer: int


def is_held_out(user_text: str) -> bool:
    """Whether a prompt belongs to the held-out split."""
    return int(hashlib.sha256(user_text.encode()).hexdigest(), 16) % HELD_OUT_EVERY == 0


def read_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(where it stands, the JSON value) of every line of a file, which may be gzipped; None for what is no JSON.

    Raises NotFoundError.
    """
    if not path.is_file():
        raise NotFoundError(f"training data {path} is no file")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                yield f"{path}:{number}", json.loads(line)
            except (ValueError, RecursionError):
                yield f"{path}:{number}", None


def read_corpus(paths: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The conversations of all files, in order. Raises NotFoundError or CorruptFileError that names file and line."""
    for path in paths:
        for where, item in read_lines(path):
            try:
                roles = [message["role"] for message in item["messages"]]
                texts = all(isinstance(message["content"], str) for message in item["messages"])
            except (KeyError, TypeError):
                texts = False
            if not texts:
                raise CorruptFileError(
                    f"{where}: not a conversation (a JSON object with `messages`, each of them with a "
                    "`role` and a text as `content`)"
                )
            if roles[-1:] != ["assistant"] or "user" not in roles:
                raise CorruptFileError(f"{where}: the messages must hold a user turn and end with the answer")
            yield item


def encode_corpus(
    items: Iterable[dict[str, Any]],
    encode_prompt: Encode,
    encode_text: Callable[[str], list[int]],
    end: int,
    limit: int,
) -> tuple[list[Conversation], list[Conversation]]:
    """(training, held-out) conversations, cut at `limit` tokens; those without two answer tokens are dropped."""
    splits: tuple[list[Conversation], list[Conversation]] = ([], [])
    for item in items:
        *prompt, answer = item["messages"]
        ids = encode_prompt(prompt)
        tokens = (ids + encode_text(answer["content"]) + [end] * bool(item.get("complete")))[:limit]
        if len(tokens) < len(ids) + 2:
            continue
        user = next(message["content"] for message in prompt if message["role"] == "user")
        splits[is_held_out(user)].append(Conversation(np.array(tokens, dtype=np.int64), len(ids)))
    if not splits[0]:
        raise ConfigError("no conversation is left for training")
    return splits


@dataclass(frozen=True)
class Batch:
    """Sequences of one padded length: `tokens` [B, T] (0 past the end), `answer` and `length` [B]."""

    tokens: NDArray[np.int64]
    answer: NDArray[np.int64]
    length: NDArray[np.int64]


class LengthPlan:
    """Which sequences form the batch of every step: a pure function of seed and step, so resuming needs no state.

    Every epoch shuffles, groups by padded length (whole buckets), and fills batches of about `tokens_per_batch` padded
    tokens.
    """

    def __init__(self, lengths: Sequence[int], tokens_per_batch: int, *seed: int, bucket: int = LENGTH_BUCKET) -> None:
        self.padded = [-(-length // bucket) * bucket for length in lengths]
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self._epoch = -1
        self._batches: list[list[int]] = []
        self._epochs: list[int] = []

    def _plan(self, epoch: int) -> list[list[int]]:
        rng = np.random.default_rng((*self.seed, epoch))
        groups: dict[int, list[int]] = {}
        batches = []
        for index in rng.permutation(len(self.padded)):
            padded = self.padded[index]
            group = groups.setdefault(padded, [])
            group.append(int(index))
            if len(group) >= max(1, self.tokens_per_batch // padded):
                batches.append(groups.pop(padded))
        batches += groups.values()  # the epoch's remainders, smaller than the rest
        return [batches[i] for i in rng.permutation(len(batches))]

    def batch(self, step: int) -> list[int]:
        """Indices of the sequences in the batch of `step` (0-based)."""
        epoch = 0
        while True:
            if epoch == len(self._epochs):
                self._epochs.append(len(self._plan(epoch)))
            if step < self._epochs[epoch]:
                break
            step -= self._epochs[epoch]
            epoch += 1
        if epoch != self._epoch:
            self._batches, self._epoch = self._plan(epoch), epoch
        return self._batches[step]


class BatchPlan:
    """The batch of conversations of every step, see LengthPlan."""

    def __init__(self, conversations: Sequence[Conversation], tokens_per_batch: int, seed: int) -> None:
        self.conversations = conversations
        self._plan = LengthPlan([len(c.tokens) for c in conversations], tokens_per_batch, seed)

    def batch(self, step: int) -> Batch:
        """The batch of `step` (0-based)."""
        return collate([self.conversations[i] for i in self._plan.batch(step)])


def collate(conversations: Sequence[Conversation]) -> Batch:
    """Pad conversations to one length."""
    length = np.array([len(c.tokens) for c in conversations])
    padded = -(-int(length.max()) // LENGTH_BUCKET) * LENGTH_BUCKET
    tokens = np.zeros((len(conversations), padded), dtype=np.int64)
    for row, conversation in zip(tokens, conversations, strict=True):
        row[: len(conversation.tokens)] = conversation.tokens
    return Batch(tokens, np.array([c.answer for c in conversations]), length)
