"""Fields that requests of several APIs share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from ..config import MAX_BLOCK, DecodeConfig, LogitBias
from ..constrain import Constraint
from .errors import Unsupported
from .structure import GUIDED, guided

T = TypeVar("T")

MOST_KEYS = 100
MOST_PARTS = 20_000
MOST_BIASES = 2048
MOST_STOPS = 32

Several = Annotated[list[T], Field(fail_fast=True)]
"""A list that is refused at its first fault: a body has room for millions of them, which would take minutes to note."""

Stop = Annotated[str, Field(min_length=1, max_length=1000)]


def shown(*examples: dict[str, Any]) -> ConfigDict:
    """A body's configuration with examples for the OpenAPI document."""
    return ConfigDict(json_schema_extra={"examples": list(examples)})


def at_most(count: int) -> BeforeValidator:
    """Refuses larger objects before anyone looks at what is in them."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > count:
            raise PydanticCustomError("too_long", "Object should have at most {count} entries", {"count": count})
        return value

    return BeforeValidator(check)


class Body(BaseModel):
    """Base of request bodies: unknown fields are refused by name, as the original APIs do; NaN and infinity too."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_keys(cls, values: Any) -> Any:
        if isinstance(values, dict) and len(values) > MOST_KEYS:
            raise PydanticCustomError("too_long", "Object should have at most {count} fields", {"count": MOST_KEYS})
        return values


class TrifoliumOptions(Body):
    """What only this server has, under the key `trifolium` of any API.

    `mode`, `block_size`, `policy`, `threshold`, `entropy_bound`, `top_n`, `remask`: as in `trifolium run`; `mode` is
    verified unless given. `draft_source`: where verified's drafts come from. `drafts`: streams also tell of the
    unfinished canvas; previews are then made whatever they cost, unless `free_rows` says otherwise. `repeats`: an
    answer that ends in one line (or any unit) this many times is ended; 0 never does; unless it is given, only answers
    that may call tools or think are watched. `thinking_budget`: tokens after which thoughts are ended.
    """

    mode: Literal["verified", "diffusion", "ar"] | None = None
    block_size: int | None = Field(None, gt=0, le=MAX_BLOCK)
    policy: Literal["threshold", "entropy", "top_n"] | None = None
    threshold: float | None = Field(None, ge=0, le=1)
    entropy_bound: float | None = Field(None, ge=0)
    top_n: int | None = Field(None, gt=0, lt=2**31)
    remask: bool | None = None
    draft_source: Literal["preview", "ngram", "both", "forced", "none"] | None = None
    drafts: bool = False
    free_rows: bool | None = None
    repeats: int | None = Field(None, ge=0, lt=2**31)
    thinking_budget: int | None = Field(None, ge=0, lt=2**31)

    def decode(self) -> dict[str, Any]:
        """Options of DecodeConfig that are given."""
        shared = DecodeConfig.model_fields.keys() & type(self).model_fields.keys()
        given = {name: getattr(self, name) for name in shared}
        given |= {"repeats": self.repeats or None}
        given |= {"drafts": self.draft_source, "free_rows": self.drafts if self.free_rows is None else self.free_rows}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Wish:
    """How a client wants its answers, whatever API it speaks. `seed` None: a fresh one. `choices`: how many answers.

    `sampling`: options of SamplingParams. Choice i is sampled with seed + i. `constraint`: what the answers must be, as
    `constrained_by`, a field of the request, says; `thoughtful`: it lets them begin with thoughts.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    choices: int = 1
    constraint: Constraint | None = None
    constrained_by: str = ""
    thoughtful: bool = False
    options: TrifoliumOptions = field(default_factory=TrifoliumOptions)


class SampledBody(Body):
    """What OpenAI's two completion APIs, and those who extend them, say of sampling."""

    model: str = "default"
    stream: bool = False
    n: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    logit_bias: Annotated[LogitBias, at_most(MOST_BIASES)] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: Stop | Annotated[Several[Stop], Field(max_length=MOST_STOPS)] | None = None
    ignore_eos: bool = False
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: Several[str] | None = None
    trifolium: TrifoliumOptions = TrifoliumOptions()

    def wish(
        self,
        *,
        max_tokens: int | None,
        logprobs: int | None,
        constraint: Constraint | None = None,
        constrained_by: str = "",
    ) -> Wish:
        """How the answers are wanted. OpenAI's default temperature is 1. Raises ApiError for constraints at fault."""
        if constraint is None:
            constraint, constrained_by = guided({name: getattr(self, name) for name in GUIDED})
        named = ("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias")
        sampling = {name: value for name in named if (value := getattr(self, name)) is not None}
        sampling["temperature"] = 1.0 if self.temperature is None else self.temperature
        sampling["top_k"] = max(0, self.top_k or 0)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        return Wish(
            sampling=sampling,
            seed=None if self.seed is None else self.seed % 2**64,
            max_tokens=max_tokens,
            stop=stop,
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            choices=self.n or 1,
            constraint=constraint,
            constrained_by=constrained_by,
            options=self.trifolium,
        )


class StreamOptions(Body):
    """What a stream tells besides the text."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


def refuse(body: Body, fields: Mapping[str, str]) -> None:
    """Raises Unsupported, with the reason, for the first of these fields that asks for something."""
    for name, why in fields.items():
        if getattr(body, name) not in (None, [], {}, False, "none"):
            raise Unsupported(name, why)
