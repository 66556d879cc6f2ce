"""Frozen configurations. An unknown key is an error that names the known ones.

Shapes in docstrings: D hidden size, F feed-forward size, H query heads, K key/value heads, d head size, V vocabulary,
E experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from .errors import ConfigError

MAX_BLOCK = 256
"""Positions of a block, at most."""

MAX_LOGPROBS = 20
"""Alternatives whose log-probabilities a request may ask for, as in OpenAI's API."""

LEAST_TEMPERATURE = 1e-5
"""Below it, sampling is greedy: logits over the temperature are near the end of float32."""

LogitBias = dict[Annotated[int, Field(ge=0)], Annotated[float, Field(ge=-100.0, le=100.0)]]


class Frozen(BaseModel):
    """Base of every config: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def parse(cls, values: Mapping[str, Any], what: str) -> Self:
        """Validate `values`; raises ConfigError that says where in `what` the fault is, and which keys exist."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            faults = [f"{'.'.join(map(str, e['loc'])) or 'value'}: {e['msg']}" for e in error.errors()]
            unknown = any(e["type"] == "extra_forbidden" for e in error.errors())
            known = f" (known keys: {', '.join(cls.model_fields)})" if unknown else ""
            raise ConfigError(f"{what}: " + "; ".join(faults) + known) from None


class RopeConfig(Frozen):
    """Rotary positions, with the scalings that the llama and qwen families publish.

    `kind` follows transformers' `rope_type`: default, linear, dynamic (NTK), yarn, llama3.
    `rotary_dim` is the number of leading dimensions of a head that rotate (all of them when None).
    """

    theta: float = Field(10_000.0, gt=0)
    kind: Literal["default", "linear", "dynamic", "yarn", "llama3"] = "default"
    factor: float = Field(1.0, ge=1.0)
    original_max_positions: int | None = Field(None, gt=0)
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    rotary_dim: int | None = Field(None, gt=0)


class DeltaNetConfig(Frozen):
    """Sizes of the gated delta-net mixers: key heads serve `value_heads / key_heads` value heads each.

    `conv_width` is the number of taps of the causal depthwise convolution over q, k and v.
    """

    key_heads: int = Field(gt=0)
    value_heads: int = Field(gt=0)
    key_dim: int = Field(gt=0)
    value_dim: int = Field(gt=0)
    conv_width: int = Field(4, gt=1, le=16)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.value_heads % self.key_heads:
            raise ValueError(f"value_heads {self.value_heads} is not a multiple of key_heads {self.key_heads}")
        return self

    @property
    def key_size(self) -> int:
        """Width of all key heads."""
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Width of all value heads."""
        return self.value_heads * self.value_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: q | k | v."""
        return 2 * self.key_size + self.value_size


class ExpertsConfig(Frozen):
    """Sizes of the mixture-of-experts feed-forwards. `shared_size` 0: no shared expert.

    `renormalise`: whether the chosen experts' weights are scaled to sum to one.
    """

    count: int = Field(gt=0)
    top_k: int = Field(gt=0)
    size: int = Field(gt=0)
    shared_size: int = Field(0, ge=0)
    renormalise: bool = True

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.top_k > self.count:
            raise ValueError(f"top_k {self.top_k} of only {self.count} experts")
        return self


class PreviewConfig(Frozen):
    """How a checkpoint that is a diffusion model by itself (clover_moe) previews.

    `mask_token`: the token whose embedding stands for a mask. `block_size`: positions of a block by default.
    `coreset_top_p`: router mass of the experts that the preview rows of one request may use.
    """

    mask_token: int = Field(ge=0, strict=True)
    block_size: int = Field(32, gt=0, le=MAX_BLOCK)
    coreset_top_p: float = Field(1.0, gt=0, le=1)
    prediction_offset: Literal[0, 1] = 1


class ModelConfig(Frozen):
    """One decoder-only transformer: what every layer is made of, and its sizes.

    `mixers` and `feed_forwards` name one kind per layer, so hybrids need no other config. `delta_net` and `experts` are
    there if any layer needs them. `output_gate`: attention outputs are multiplied by a sigmoid gate of the query
    product. `norm_offset`: norms of vectors scale by offset + weight (Qwen3.5 stores weight - 1).
    """

    family: Literal["llama", "qwen2", "qwen3", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "clover_moe"]
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0, multiple_of=2)
    rms_norm_eps: float = Field(1e-6, gt=0)
    tie_embeddings: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    norm_offset: Literal[0, 1] = 0
    delta_net: DeltaNetConfig | None = None
    experts: ExpertsConfig | None = None
    rope: RopeConfig = RopeConfig.model_construct()
    max_positions: int = Field(gt=0)
    mixers: tuple[Literal["attention", "delta_net"], ...] = ()
    feed_forwards: tuple[Literal["dense", "experts"], ...] = ()
    preview: PreviewConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_layers(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(n := values.get("num_layers"), int):
            values = {**values}
            values.setdefault("mixers", ("attention",) * n)
            values.setdefault("feed_forwards", ("dense",) * n)
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if len(self.mixers) != self.num_layers or len(self.feed_forwards) != self.num_layers:
            raise ValueError("mixers and feed_forwards must name one kind for each layer")
        if "delta_net" in self.mixers and self.delta_net is None:
            raise ValueError("delta-net layers need their sizes (delta_net)")
        if self.preview is not None and self.preview.mask_token >= self.vocab_size:
            raise ValueError(f"mask_token {self.preview.mask_token} is outside the vocabulary of {self.vocab_size}")
        if "experts" in self.feed_forwards and self.experts is None:
            raise ValueError("mixtures of experts need their sizes (experts)")
        return self

    @property
    def q_size(self) -> int:
        """Width of all query heads: H * d."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads: K * d."""
        return self.num_kv_heads * self.head_dim


class AdapterConfig(Frozen):
    """What conversion adds to an AR base. All of it acts on preview rows only ("gated"): commit rows stay the base.

    `base_fingerprint` ties the adapter to the weights it was trained on (see checkpoint.fingerprint). `rank` 0: no
    low-rank deltas; `max_block` 0: no position-in-block embeddings; `mask_token`: the token whose embedding stands for
    a mask, where it has none of its own. `coreset_top_p`: see PreviewConfig. `delta_preview`: how delta-net layers
    preview; "causal" runs the commit's recurrence over the block, and is there for comparison.
    """

    format: Literal[1] = 1
    base_name: str
    base_fingerprint: str
    rank: int = Field(64, ge=0)
    alpha: float = Field(64.0, gt=0)
    max_block: int = Field(32, ge=0)
    chain_size: int = Field(768, ge=0)
    mask_token: int | None = Field(None, ge=0)
    prediction_offset: Literal[0, 1] = 1
    block_size: int = Field(8, gt=0, le=MAX_BLOCK)
    coreset_top_p: float = Field(1.0, gt=0, le=1)
    delta_preview: Literal["softmax", "causal"] = "softmax"
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_layers: int = Field(gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.mask_token is not None and self.mask_token >= self.vocab_size:
            raise ValueError(f"mask_token {self.mask_token} is outside the vocabulary of {self.vocab_size}")
        return self


class SkillsConfig(Frozen):
    """What a file of skills says of itself: low-rank deltas of a base's own weights, scaled by alpha / rank.

    `base_fingerprint`: of the plain base (Checkpoint.fingerprint). `recipe`: sha256 of the recipe that trained them.
    """

    format: Literal[1] = 1
    base_name: str
    base_fingerprint: str
    rank: int = Field(gt=0)
    alpha: float = Field(gt=0)
    recipe: str = ""

    @property
    def scale(self) -> float:
        """The factor of the product of a pair."""
        return self.alpha / self.rank


class SamplingParams(Frozen):
    """How tokens are chosen. Temperature 0 is greedy, and so are those whose products would leave float32.

    Penalties follow OpenAI's and transformers' definitions.

    `logit_bias`: what is added to these tokens' logits before anything else.
    """

    temperature: float = Field(0.0, ge=0.0, le=100.0)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    min_p: float = Field(0.0, ge=0.0, le=1.0)
    repetition_penalty: float = Field(1.0, gt=0.0)
    presence_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(0.0, ge=-2.0, le=2.0)
    seed: int = Field(0, ge=0, lt=2**64)
    logit_bias: LogitBias = {}

    @field_validator("temperature")
    @classmethod
    def _greedy(cls, temperature: float) -> float:
        return temperature if temperature >= LEAST_TEMPERATURE else 0.0


REPEATS = 6
"""`repeats` for those who call tools or think, unless they say otherwise: nobody reads what they write as it comes."""


class DecodeConfig(Frozen):
    """How a request decodes: the mode, its blocks, its drafts, when it ends, and what is told of each token.

    `drafts`: where they come from. Under a constraint, tokens that it forces are drafts too, unless `drafts` is "none";
    "forced" takes no others, also in mode `ar`, which otherwise has none: AR that jumps over literals.
    `free_rows`: take all rows that may save a pass, worth their time or not: previews to look at, passes to count.
    `repeats`: how often an answer may end in the same line, or any other unit, before that is taken for a circle and
    ended; it has 64 tokens by then, at least. `thinking_budget`: tokens after which a think block is closed.
    `logprobs`: how many of the likeliest tokens to name at each position, beside the chosen one's log-probability.
    """

    mode: Literal["verified", "diffusion", "ar"] = "verified"
    drafts: Literal["preview", "ngram", "both", "forced", "none"] = "both"
    block_size: int | None = Field(None, gt=0, le=MAX_BLOCK)
    policy: Literal["threshold", "entropy", "top_n"] = "threshold"
    threshold: float = Field(0.9, ge=0.0, le=1.0)
    entropy_bound: float = Field(0.3, ge=0.0)
    top_n: int = Field(1, gt=0)
    remask: bool = False
    free_rows: bool = False
    max_tokens: int = Field(256, gt=0)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    repeats: int | None = Field(None, ge=2)
    thinking_budget: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
