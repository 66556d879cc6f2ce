"""Training conversations in the base model's own words: it writes the questions, and it answers them.

Questions are sampled after the start of a user turn and an opening ("Explain", "Write a Python function", ...); answers
are greedy. Everything follows from the seed, and a file that is already there is continued, not begun again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from ..api import LM
from ..config import DecodeConfig, Frozen, SamplingParams
from ..engine import Handle, Request
from ..errors import CorruptFileError, UsageError

OPENINGS = (
    "Explain", "What is", "How do I", "Why does", "Write a Python function that", "Write a short story about",
    "Summarize", "Give me three tips for", "Compare", "Translate into French:", "List", "Describe", "Write an email to",
    "What are the benefits of", "Rewrite this sentence politely:", "Can you help me", "Who was", "When did", "Define",
    "Write a poem about", "Calculate", "Fix this code:", "Write a JSON object that", "Is it true that", "Tell me about",
    "Create a table of", "Classify the sentiment of:", "Write a SQL query that", "What happens if", "How many",
)  # fmt: skip


class GenerationConfig(Frozen):
    """What to write. `question_tokens` and `answer_tokens` are upper bounds; `batch` requests share passes."""

    count: int = Field(100, gt=0)
    seed: int = Field(0, ge=0)
    temperature: float = Field(0.9, gt=0)
    question_tokens: int = Field(56, gt=0)
    answer_tokens: int = Field(160, gt=0)
    batch: int = Field(16, gt=0, le=256)
    openings: tuple[str, ...] = OPENINGS


@dataclass(frozen=True)
class Written:
    """One conversation that was added: its line, and how many are there of how many."""

    line: dict[str, Any]
    done: int
    count: int


def generate_data(
    lm: LM, config: GenerationConfig, path: Path, *, on_line: Callable[[Written], None] = lambda written: None
) -> int:
    """Append conversations to `path` until it holds `config.count`; returns how many were added.

    Lines: {"messages", "complete", "answer_tokens", "index"}. `index` numbers the attempts, so a rerun goes on after
    the last one. Questions that were asked before are dropped. Raises CorruptFileError if `path` holds something else.
    """
    seen, index, done = _existing(path)
    added = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        while done < config.count:
            questions = _questions(lm, config, range(index, index + config.batch))
            index += config.batch
            fresh = {text: number for number, text in questions if text not in seen}
            for text, number, answer in _answers(lm, config, fresh):
                seen.add(text)
                messages = [{"role": "user", "content": text}, {"role": "assistant", "content": answer.text}]
                line = {
                    "messages": messages,
                    "complete": answer.finish_reason == "stop",
                    "answer_tokens": len(answer.token_ids),
                    "index": number,
                }
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                done += 1
                added += 1
                on_line(Written(line, done, config.count))
            file.flush()
            os.fsync(file.fileno())
    return added


def _existing(path: Path) -> tuple[set[str], int, int]:
    """Questions so far, the next attempt's index, and the number of lines."""
    if not path.exists():
        return set(), 0, 0
    seen, last, lines = set(), -1, 0
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            item = json.loads(line)
            seen.add(item["messages"][0]["content"])
            last = max(last, int(item["index"]))
        except (ValueError, KeyError, TypeError, IndexError):
            raise CorruptFileError(f"{path}:{number}: not a line that generate-data wrote; name another file") from None
        lines = number
    return seen, last + 1, lines


def user_turn_prefix(lm: LM, opening: str) -> list[int]:
    """Token ids of a conversation up to and including `opening` in an unfinished user turn, for any chat template."""
    ids, other = lm.encode(opening), lm.encode(opening + " zebra")
    tail = 0
    while tail < len(ids) and ids[-1 - tail] == other[-1 - tail]:
        tail += 1
    return ids[: len(ids) - tail]


def _questions(lm: LM, config: GenerationConfig, numbers: range) -> list[tuple[int, str]]:
    """(attempt, question) of a batch of attempts; those that did not end are dropped."""
    openings = [config.openings[number % len(config.openings)] for number in numbers]
    requests = [
        Request(
            user_turn_prefix(lm, opening),
            SamplingParams(temperature=config.temperature, seed=config.seed * 1_000_003 + number),
            DecodeConfig(max_tokens=config.question_tokens, drafts="ngram"),
        )
        for number, opening in zip(numbers, openings, strict=True)
    ]
    out = []
    for number, opening, handle in zip(numbers, openings, _run(lm, requests), strict=True):
        text = (opening + handle.result.text).strip()
        if handle.result.finish_reason == "stop" and "\n\n\n" not in text:
            out.append((number, text))
    return out


def _answers(lm: LM, config: GenerationConfig, questions: dict[str, int]) -> Iterator[tuple[str, int, Any]]:
    """(question, attempt, result) with greedy answers."""
    decode = DecodeConfig(max_tokens=config.answer_tokens)
    requests = [Request(lm.encode(text), SamplingParams(), decode) for text in questions]
    for (text, number), handle in zip(questions.items(), _run(lm, requests), strict=True):
        if handle.result.text.strip():
            yield text, number, handle.result


def _run(lm: LM, requests: Sequence[Request]) -> list[Handle]:
    handles = [lm.engine.add(request) for request in requests]
    if not handles:
        return handles
    while not all(handle.done for handle in handles):
        if not lm.engine.step() and not all(handle.done for handle in handles):
            raise UsageError("the engine stopped before all requests were done")
    return handles
