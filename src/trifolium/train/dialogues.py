"""Whole conversations as training data: every assistant turn is learned, and several files share a run.

A file is JSON Lines (optionally .gz): `messages` in OpenAI's shape, `tools` where there are some, `complete` (whether
the last answer reached its end), and `skill`, the kind of thing that a line teaches; lines without one are chat. The
split is by the first user turn, as in train.data.

Shapes: B sequences, T positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, CorruptFileError, ToolError
from .data import Encode, LengthPlan, is_held_out, read_lines

BUCKET = 16
"""Sequences are padded to whole buckets: few tokens are wasted where prompts are long."""

CHAT = "chat"
"""The skill of lines that name none."""

ROLES = {"system", "user", "assistant"}


@dataclass(frozen=True)
class Dialogue:
    """`tokens` [T] of one conversation, and which of them an assistant wrote: `scored` [T], end tokens included."""

    tokens: NDArray[np.int64]
    scored: NDArray[np.bool_]
    skill: str = CHAT


@dataclass(frozen=True)
class Encoder:
    """How conversations become tokens. `lay_out`: messages and tools as plain turns of text, as a server lays them out;
    `prompt`: such messages up to where an answer starts; `text`: an answer; `end`: its end.
    """

    lay_out: Callable[[Sequence[dict[str, Any]], Sequence[Any]], list[dict[str, Any]]]
    prompt: Encode
    text: Callable[[str], list[int]]
    end: int


@dataclass
class DialogueFile:
    """Both splits of one file. `dropped`: how many lines were left out, since they are longer than the limit."""

    training: list[Dialogue] = field(default_factory=list)
    held_out: list[Dialogue] = field(default_factory=list)
    dropped: int = 0

    @property
    def density(self) -> float:
        """Scored tokens among the padded ones of the training split."""
        padded = sum(-(-len(d.tokens) // BUCKET) * BUCKET for d in self.training)
        return sum(int(d.scored.sum()) for d in self.training) / padded

    def about(self) -> dict[str, Any]:
        """Statistics of both splits, as JSON values."""
        return {
            "training": len(self.training),
            "held_out": len(self.held_out),
            "dropped": self.dropped,
            "tokens": sum(len(d.tokens) for d in self.training),
            "scored": sum(int(d.scored.sum()) for d in self.training),
            "skills": dict(sorted(Counter(d.skill for d in self.training).items())),
        }


def read_dialogues(path: Path, encoder: Encoder, limit: int) -> DialogueFile:
    """Read and tokenise one file; lines of more than `limit` tokens are left out, since their ends would be missing.

    Raises NotFoundError, CorruptFileError that names file and line, and ConfigError if nothing is left for training.
    """
    found = DialogueFile()
    for messages, complete, skill in _lines(path, encoder):
        dialogue = encode_dialogue(messages, encoder, complete=complete, skill=skill)
        if len(dialogue.tokens) > limit:
            found.dropped += 1
            continue
        user = next(message["content"] for message in messages if message["role"] == "user")
        (found.held_out if is_held_out(user) else found.training).append(dialogue)
    if not any(d.scored.any() for d in found.training):
        raise ConfigError(f"{path} leaves no conversation for training ({found.dropped} are too long)")
    return found


def encode_dialogue(messages: Sequence[dict[str, Any]], encoder: Encoder, *, complete: bool, skill: str) -> Dialogue:
    """Tokens of a conversation of plain turns that ends with an answer, and which of them are answers.

    The tokens are those that a server would see: the template's prompt before the last answer, then the answer. An
    earlier answer is scored where that prompt holds it just as it would have been written: after the prompt of its own
    turn, in the same tokens, with the end token. Some templates cut or change earlier turns; those are only read.
    """
    *prompt, answer = messages
    ids = encoder.prompt(prompt)
    said = encoder.text(answer["content"]) + [encoder.end] * complete
    tokens = np.array(ids + said, dtype=np.int64)
    scored = np.zeros(len(tokens), dtype=np.bool_)
    scored[len(ids) :] = True
    for place, message in enumerate(prompt):
        if message["role"] == "assistant":
            before = encoder.prompt(list(prompt[:place]))
            turn = before + encoder.text(message["content"]) + [encoder.end]
            if ids[: len(turn)] == turn:
                scored[len(before) : len(turn)] = True
    return Dialogue(tokens, scored, skill)


def _lines(path: Path, encoder: Encoder) -> Iterator[tuple[list[dict[str, Any]], bool, str]]:
    for where, item in read_lines(path):
        try:
            messages = encoder.lay_out(item["messages"], item.get("tools") or ())
            roles = [message["role"] for message in messages]
            texts = all(isinstance(message["content"], str) for message in messages)
            skill = item.get("skill") or CHAT
        except (AttributeError, KeyError, TypeError, ToolError):
            texts = False
        if not texts:
            raise CorruptFileError(
                f"{where}: not a conversation in OpenAI's shape (a JSON object with `messages`, each of them with a "
                "`role` and a text or `tool_calls`, and with `tools` where there are some)"
            )
        if roles[-1:] != ["assistant"] or "user" not in roles or not set(roles) <= ROLES or not isinstance(skill, str):
            raise CorruptFileError(
                f"{where}: the messages must hold a user turn and end with the answer; roles {roles}"
            )
        yield messages, bool(item.get("complete")), skill


@dataclass(frozen=True)
class DialogueBatch:
    """Sequences of one padded length: `tokens` [B, T] (0 past the end), `scored` [B, T], `length` [B]."""

    tokens: NDArray[np.int64]
    scored: NDArray[np.bool_]
    length: NDArray[np.int64]


def collate_dialogues(dialogues: Sequence[Dialogue]) -> DialogueBatch:
    """Pad conversations to one length."""
    length = np.array([len(d.tokens) for d in dialogues])
    shape = (len(dialogues), -(-int(length.max()) // BUCKET) * BUCKET)
    tokens, scored = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    for row, dialogue in enumerate(dialogues):
        tokens[row, : length[row]] = dialogue.tokens
        scored[row, : length[row]] = dialogue.scored
    return DialogueBatch(tokens, scored, length)


class Mixture:
    """Which file the n-th batch comes from, so that padded tokens keep to the shares; and which conversations it has.

    The file that is furthest behind its share is next: a pure function of n, so resuming needs no state.
    """

    def __init__(
        self, files: Sequence[Sequence[Dialogue]], shares: Sequence[float], tokens_per_batch: int, seed: int
    ) -> None:
        self.files = files
        self.shares = np.array(shares) / sum(shares)
        self._plans = [
            LengthPlan([len(d.tokens) for d in dialogues], tokens_per_batch, seed, place, bucket=BUCKET)
            for place, dialogues in enumerate(files)
        ]
        self._order: list[tuple[int, int]] = []
        self._counts = np.zeros(len(files), dtype=np.int64)

    def batch(self, n: int) -> tuple[int, DialogueBatch]:
        """(file, batch) number n (0-based)."""
        while len(self._order) <= n:
            source = int((self.shares * (len(self._order) + 1) - self._counts).argmax())
            self._order.append((source, int(self._counts[source])))
            self._counts[source] += 1
        source, step = self._order[n]
        return source, collate_dialogues([self.files[source][i] for i in self._plans[source].batch(step)])
