"""The shapes of responses, as the OpenAPI document tells them; `make fuzz` holds the server to them.

Answers are written as plain dictionaries, since most of what makes them is a stream. These classes say what is in them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """Base: nothing is in a response that isn't told here."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Shape):
    """What is wrong, for people (`message`) and programs; `param` names the field at fault."""

    message: str
    type: Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class ErrorBody(Shape):
    """Any request that wasn't done."""

    error: ErrorDetail


class AnthropicErrorDetail(Shape):
    """What is wrong, as Anthropic's clients read it."""

    type: str
    message: str


class AnthropicErrorBody(Shape):
    """Any request to /v1/messages that wasn't done."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


class Detail(Shape):
    """A fault, and the way to it through the body."""

    loc: list[str | int]
    msg: str
    type: str


class SystemOneErrorBody(Shape):
    """Any request to /v1/systemone that wasn't done."""

    detail: list[Detail]


class Passes(Shape):
    """What decoding took. `accepted_drafts` counts by source; `notes` say what was done otherwise than asked."""

    mode: Literal["verified", "diffusion", "ar"]
    passes: int
    tokens_per_pass: float
    seconds: float
    prompt_seconds: float
    accepted_drafts: dict[str, int]
    notes: list[str]


class Usage(Shape):
    """Tokens of the prompt, once, and of all answers together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[Literal["cached_tokens"], int]
    completion_tokens_details: dict[Literal["reasoning_tokens"], int]
    trifolium: Passes


class Likely(Shape):
    """A token with its bytes and log-probability, -9999 for impossible ones."""

    token: str
    logprob: float = Field(ge=-9999, le=0.001)
    bytes: list[int]


class Chosen(Likely):
    """A token of the answer, and the likeliest ones at its position."""

    top_logprobs: list[Likely]


class ChatLogprobs(Shape):
    """One entry for each token of the answer."""

    content: list[Chosen]
    refusal: None


class ChatAnswer(Shape):
    """`reasoning_content` is there for models that think aloud; `content` is null beside calls without a word."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ChatToolCall] | None = None
    reasoning_content: str | None = None


FinishReason = Literal["stop", "length", "repetition", "cancelled"]


class CalledFunction(Shape):
    """A tool's name, and its arguments as JSON."""

    name: str
    arguments: str


class ChatToolCall(Shape):
    """A call of a tool; a message of the role `tool` with its id brings the result."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatChoice(Shape):
    """One answer to a chat."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | Literal["tool_calls"]


class ChatCompletion(Shape):
    """A response of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class TextLogprobs(Shape):
    """Lists of equal length; offsets count characters of the text."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Shape):
    """One text that went on."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason


class TextCompletion(Shape):
    """A response of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage


class ModelFacts(Shape):
    """What only this server tells of a model that is loaded."""

    dtype: str
    diffusion: bool


class Model(Shape):
    """A model, in OpenAI's and Anthropic's words at once. `max_model_len`: positions, of models that are loaded."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    type: Literal["model"]
    display_name: str
    max_model_len: int | None = None
    trifolium: ModelFacts | None = None


class ModelList(Shape):
    """Every model that a request may name."""

    object: Literal["list"]
    data: list[Model]
    has_more: Literal[False]


class Piece(Shape):
    """A token and its text."""

    id: int
    piece: str


class Tokens(Shape):
    """Token ids of a text, or pieces if they were asked for; `max_model_len`: positions that the model has."""

    tokens: list[int] | list[Piece]
    count: int
    max_model_len: int


class Text(Shape):
    """The text of token ids."""

    content: str


class Health(Shape):
    """The server answers with this model, unless told otherwise. `replica`: which of several answered."""

    status: Literal["ok"]
    model: str
    replica: str | None = None


class MessageBlock(Shape):
    """A part of a message: what the model thought, what it says, or a tool that it calls."""

    type: Literal["thinking", "text", "tool_use"]
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    thinking: str | None = None
    signature: str | None = None
    text: str | None = None
    citations: None = None


class MessageUsage(Shape):
    """Tokens of the prompt that were computed, those that were in the prefix cache, and those of the answer."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    trifolium: Passes


class AnthropicMessage(Shape):
    """A response of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "repetition"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Shape):
    """A response of /v1/messages/count_tokens."""

    input_tokens: int


class OutputPart(Shape):
    """A text of an output item, with what is known of each token if it was asked for."""

    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Chosen] | None = None


class OutputItem(Shape):
    """What the model said, thought, or calls (`call_id`, `name`, `arguments`)."""

    id: str
    type: Literal["message", "reasoning", "function_call"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] | None = None
    content: list[OutputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    summary: list[Any] | None = None


class ResponseUsage(Shape):
    """Tokens of the prompt and of the answer."""

    input_tokens: int
    input_tokens_details: dict[Literal["cached_tokens", "cache_write_tokens"], int]
    output_tokens: int
    output_tokens_details: dict[Literal["reasoning_tokens"], int]
    total_tokens: int
    trifolium: Passes


class ResponseObject(Shape):
    """A response of /v1/responses, as it stands."""

    id: str
    object: Literal["response"]
    created_at: float
    completed_at: float | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: dict[Literal["code", "message"], str] | None
    incomplete_details: dict[Literal["reason"], str] | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[Literal["effort", "summary"], str | None]
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[Literal["format"], dict[str, Any]]
    tool_choice: str | dict[str, Any]
    tools: list[Any]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None


class Filled(Shape):
    """A response of /v1/fill. `holes`: what fills each; empty if the text was cut short."""

    id: str
    object: Literal["text_fill"]
    model: str
    text: str
    holes: dict[str, str]
    finish_reason: FinishReason
    usage: Usage


class InputItems(Shape):
    """A page of what a response was asked with."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(Shape):
    """A response that was forgotten."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


def _errors(body: type[Shape]) -> dict[int | str, dict[str, Any]]:
    return {
        "4XX": {
            "model": body,
            "description": "The request is at fault: 400 a field, 401 the key, 404 a name, 408 and 413 a body that is "
            "slow or large, 429 too many requests (Retry-After says when to come back).",
        },
        "5XX": {"model": body, "description": "The server is: 500 a bug, 503 it stops or has no room, 504 too slow."},
    }


ERRORS = _errors(ErrorBody)
ANTHROPIC_ERRORS = _errors(AnthropicErrorBody)
SYSTEMONE_ERRORS = _errors(SystemOneErrorBody)


def answers(shape: type[Shape]) -> dict[int | str, dict[str, Any]]:
    """How a route answers: as `shape` at once, or in server-sent events."""
    event = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
    events = {"schema": {**event, "required": ["data"]}}
    return {200: {"model": shape, "description": "The answers.", "content": {"text/event-stream": events}}}
