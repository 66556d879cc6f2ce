"""What a request tells those who watch it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..errors import ConstraintError

if TYPE_CHECKING:
    from ..constrain import Constraint


FinishReason = Literal["stop", "length", "repetition", "cancelled"]


@dataclass(frozen=True)
class TokenLogprob:
    """A token of the answer and the log-probability that the model gave it, before bias, penalties and temperature.

    `top`: the likeliest tokens of its position and theirs, best first. In `diffusion` the numbers are those that the
    token was accepted by, at the request's temperature, and `top` names only candidates that were looked at.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Result:
    """A finished answer. `passes`, `seconds` and the rates count decoding; prompt work is counted apart.

    `cached_tokens`: how many of the `prompt_tokens` were taken from the prefix cache instead of being computed. A pass
    that holds prompts and answers counts for both.

    `token_ids` ends with the token that completed a stop string; an end token is in neither the ids nor the counts, but
    the pass that found it is. `finish_reason`: "stop" (end token or stop string), "length", "repetition"
    (it went in circles) or "cancelled"; `stop` is
    the stop string, if one ended it. `accepted_by` counts accepted drafts by their source. `experts_per_pass`: distinct
    experts that a decoding pass read in a mixture layer, on average (0 without such layers). In a shared pass the whole
    pass's time counts for each of its requests. `dtype`: how products were computed. `notes`: what was done otherwise
    than asked. `logprobs`: one for each of `token_ids`, if they were asked for. `constraint`: what the answer follows.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    passes: int
    seconds: float
    prompt_passes: int
    prompt_seconds: float
    accepted_by: Mapping[str, int]
    finish_reason: FinishReason
    stop: str | None
    mode: str
    drafts: str
    model: str = ""
    dtype: str = ""
    load_seconds: float = 0.0
    experts_per_pass: float = 0.0
    cached_tokens: int = 0
    notes: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    constraint: Constraint | None = None

    @property
    def complete(self) -> bool:
        """Whether the answer came to its own end: an end token, or its constraint's."""
        return self.finish_reason == "stop" and self.stop is None

    @property
    def parsed(self) -> Any:
        """The object that an answer under a JSON Schema stands for: plain JSON, or an instance of the pydantic model.

        None without a schema. Raises ConstraintError if the answer was cut short, and pydantic's ValidationError where
        a model's own validators ask for more than its schema says.
        """
        if self.constraint is None:
            return None
        if not self.complete:
            why = f"the stop string {self.stop!r}" if self.stop is not None else self.finish_reason
            raise ConstraintError(f"the answer is not complete, it ended by {why}: allow more tokens (max_tokens)")
        return self.constraint.parse(self.text)

    @property
    def tokens(self) -> int:
        """Tokens of the answer."""
        return len(self.token_ids)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens of the answer for each decoding pass; 1.0 is what one token at a time gives."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answer for each second of decoding."""
        return self.tokens / self.seconds if self.seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """The object that `trifolium run --json` prints."""
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "tokens": self.tokens,
            "passes": self.passes,
            "tokens_per_pass": self.tokens_per_pass,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "prompt_passes": self.prompt_passes,
            "prompt_seconds": self.prompt_seconds,
            "load_seconds": self.load_seconds,
            "accepted_by": dict(self.accepted_by),
            "experts_per_pass": self.experts_per_pass,
            "finish_reason": self.finish_reason,
            "mode": self.mode,
            "drafts": self.drafts,
            "model": self.model,
            "dtype": self.dtype,
        }


@dataclass(frozen=True)
class TextEvent:
    """Text that is final. `token_ids`: tokens emitted since the last event; both grow in step, not one for one.

    `logprobs`: one for each token, if they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One canvas position: `token` is None where it is masked; `proposed` tokens may still change, `accepted` won't.

    `pinned` tokens are literals of a constraint: nothing else can stand there, if what comes before stays.
    """

    token: int | None
    state: Literal["masked", "proposed", "accepted", "pinned"]
    confidence: float = 0.0


@dataclass(frozen=True)
class CanvasEvent:
    """The positions after the last emitted token, as they stand after a pass. `start`: the first one's position."""

    start: int
    cells: tuple[Cell, ...]
    texts: tuple[str, ...] = field(default=())
    """Each cell's token as text, where the engine has a tokenizer."""


@dataclass(frozen=True)
class FinishedEvent:
    """The last event of a request that ended well."""

    result: Result


Event = TextEvent | CanvasEvent | FinishedEvent
