"""Load a model, ask it, watch it answer: the public way in for Python programs.

import trifolium

lm = trifolium.load()
print(lm.generate("Name the capital of France.").text)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import torch

from . import dtypes
from .checkpoint import Checkpoint, Shelf, check_base, load_adapter, open_checkpoint, read_adapter_config
from .checkpoint.prepared import PreparedWeights, Products
from .config import REPEATS, DecodeConfig, ModelConfig, SamplingParams
from .constrain import Constraint, grammar, json_schema, regex
from .decide import Decisions, Deliberation, Group, Inquiry, Question, Temperatures, Writer, decide, deliberate, text_of
from .decide.calibration import CalibrationFile
from .dtypes import DTypeName
from .engine import MAX_ROWS, Engine, Event, FinishedEvent, Handle, Request, Result
from .errors import ConfigError, PromptError, TensorMismatchError, ToolError
from .model import Adapter, Transformer
from .model.experts import Experts
from .model.linear import Linear
from .text import ChatTemplate, ReasoningSplitter, Tokenizer, encode_chat
from .tools import (
    ToolFormat,
    ToolUse,
    Turn,
    TurnReader,
    constraint_of,
    format_of,
    knows_tools,
    lay_out,
    read_tools,
    read_use,
)

Messages = Sequence[Mapping[str, Any]]
Prompt = str | Messages | Sequence[int]
"""A user's message, a whole conversation, or token ids that are taken as they are."""

DEFAULT_MODEL = "smollm2-135m"


class LM:
    """A loaded model with its tokenizer, chat template and engine. Not thread-safe: one caller at a time."""

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        *,
        name: str = "",
        dtype: str = "float32",
        load_seconds: float = 0.0,
        max_rows: int = MAX_ROWS,
        notes: Sequence[str] = (),
        fingerprint: str | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.name = name
        self.dtype = dtype
        self.load_seconds = load_seconds
        self.notes = tuple(notes)
        """What went otherwise than it should while the model was loaded."""
        self.engine = Engine(model, tokenizer, max_rows=max_rows)
        self.fingerprint = fingerprint
        """The weights' identity, None for a model that was not loaded from a checkpoint."""
        self._template = ChatTemplate.of(tokenizer)

    def encode(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        tools: Sequence[Any] = (),
        template: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a prompt; text and messages go through the chat template, with `template`'s further variables.

        `tools`: what the model may call, in OpenAI's shape or as Tools. Messages may have `tool_calls`, and the role
        `tool`. Raises PromptError if the prompt is empty, or too long to be worth cutting into tokens, TemplateError
        for messages that the template refuses, and ToolError for broken tools and calls.
        """
        if isinstance(prompt, str):
            if not prompt.strip():
                raise PromptError("the prompt is empty")
            prompt = [{"role": "user", "content": prompt}]
        if not isinstance(prompt, Sequence):
            raise PromptError("a prompt is a text, a list of messages, or a list of token ids")
        if all(isinstance(token, int) for token in prompt):
            return list(cast(Sequence[int], prompt))
        messages = list(cast(Messages, prompt))
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
        self.check_size(sum(len(content) for content in contents if isinstance(content, str)))
        known = read_tools(tools)
        told = [tool.as_openai() for tool in known] if knows_tools(self.tokenizer.chat_template) else []
        if known or any(isinstance(m, Mapping) and (m.get("tool_calls") or m.get("role") == "tool") for m in messages):
            try:
                messages = [*lay_out(self.tokenizer.chat_template, self.tool_format, messages, known)]
            except ToolError as error:
                raise error.under("messages") from None
            self.check_size(len(json.dumps([messages, told], default=str)))
        return encode_chat(self.tokenizer, self._template, messages, tools=told or None, **(template or {}))

    def check_size(self, characters: int) -> None:
        """Raises PromptError for a text that no tokenizer could fit into the context: that takes no time to see."""
        positions = self.model.config.max_positions
        if characters > positions * self.tokenizer.longest:
            raise PromptError(f"a prompt of {characters:,} characters can't fit into the context of {positions} tokens")

    @property
    def thinks(self) -> bool:
        """Whether the model's chat template knows reasoning, in <think> blocks."""
        return "<think>" in (self.tokenizer.chat_template or "")

    def is_thinking(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends inside a <think> block, so that the answer begins there."""
        return self.thinks and self.tokenizer.decode(prompt[-8:]).rstrip().endswith("<think>")

    @cached_property
    def tool_format(self) -> ToolFormat:
        """How the model writes tool calls."""
        return format_of(self.tokenizer.chat_template)

    def reader(self, prompt: Sequence[int], use: ToolUse | None = None) -> TurnReader:
        """What tells reasoning, content and calls apart in an answer to this prompt."""
        splitter = ReasoningSplitter(self.is_thinking(prompt), knows=self.thinks)
        return TurnReader(splitter, None if use is None else self.tool_format, () if use is None else use.tools)

    def constraint(self, prompt: Sequence[int], use: ToolUse, content: Constraint | None = None) -> Constraint:
        """What an answer to this prompt may be, calls included; `content`: the schema of one without calls."""
        return constraint_of(self.tool_format, use, content=content, thinking=self.is_thinking(prompt))

    def request(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        tools: Sequence[Any] = (),
        tool_choice: Any = None,
        parallel_tool_calls: bool = True,
        template: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> tuple[Request, ToolUse | None]:
        """What the engine is asked for by `submit`'s arguments, and what the answer may call."""
        use = read_use(tools, tool_choice, parallel_tool_calls)
        constraint, options = take_constraint(options)
        if use is not None:
            options = {"repeats": REPEATS, **options}
        sampling, decode = split_options(options)
        ids = self.encode(prompt, system=system, tools=() if use is None else use.tools, template=template)
        if use is not None:
            constraint = self.constraint(ids, use, constraint)
        return Request(ids, sampling, decode, constraint, self.is_thinking(ids)), use

    def submit(self, prompt: Prompt, **options: Any) -> Handle:
        """Queue a prompt in the engine. `options`: the fields of SamplingParams and DecodeConfig, and one of `schema`
        (a JSON Schema as an object or text, or a pydantic model class), `regex`, `grammar` (text) and `constraint`;
        `system`, a message before the others; `tools`, `tool_choice` and `parallel_tool_calls` in OpenAI's shapes;
        `template`, further variables of the chat template.

        Raises ConfigError for an unknown or bad option, PromptError for an empty or overlong prompt, ConstraintError
        for a constraint that can't be used, ToolError for broken tools.
        """
        return self.engine.add(self.request(prompt, **options)[0])

    def generate(self, prompt: Prompt, **options: Any) -> Result:
        """Answer a prompt. Options and errors as in `submit`; calls are part of the text, as the model writes them."""
        return self._finish(self.submit(prompt, **options))

    def chat(self, messages: Prompt, **options: Any) -> Turn:
        """Answer a conversation: what is said, what was thought, and which of the `tools` are to be called.

        Every call is valid by its tool's schema. Options and errors as in `submit`.
        """
        request, use = self.request(messages, **options)
        return self.reader(request.prompt, use).turn(self._finish(self.engine.add(request)))

    def _finish(self, handle: Handle) -> Result:
        while not handle.done:
            self.engine.step()
        return self.named(handle.result)

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Event]:
        """Answer a prompt, and tell of every pass: text as it becomes final, the canvas, and the result at the end.

        Options and errors as in `submit`, raised at once. Closing the iterator cancels the answer.
        """
        return self._follow(self.submit(prompt, **options))

    def _follow(self, handle: Handle) -> Iterator[Event]:
        try:
            while not handle.done:
                self.engine.step()
                for event in handle.events():
                    yield FinishedEvent(self.named(event.result)) if isinstance(event, FinishedEvent) else event
            _ = handle.result  # raises what made the request fail
        finally:
            handle.cancel()

    def decide(
        self, state: Any, questions: Sequence[Question], *, joint: Sequence[Group] = (), orders: int = 1
    ) -> Decisions:
        """Answer typed questions about a state, which is text, or an object or array that is read as JSON.

        `joint`: groups of questions that are answered together (docs/decisions.md). `orders`: over how many orders of
        its options each other question is averaged. Raises QuestionError for what can't be asked and PromptError for a
        state that is empty or past the context, before anything is computed.
        """
        return self.answer(Inquiry.of(text_of(state), questions, joint, orders))

    def answer(self, inquiry: Inquiry, temperatures: Temperatures | None = None) -> Decisions:
        """Answer an inquiry, with the model's own temperatures unless others are given. Errors as in `decide`."""
        return decide(self.engine, self.deliberate(inquiry, temperatures))

    def deliberate(self, inquiry: Inquiry, temperatures: Temperatures | None = None) -> Deliberation:
        """What an inquiry makes the engine score, step by step, for those who run the engine themselves."""
        for text in (inquiry.state, *(question.text for question in inquiry.questions)):
            self.check_size(len(text))
        return deliberate(self._writer, inquiry, self.temperatures if temperatures is None else temperatures)

    @cached_property
    def _writer(self) -> Writer:
        return Writer(self.tokenizer, self._template)

    @cached_property
    def temperatures(self) -> Temperatures:
        """What `trifolium calibrate` has fitted for these weights; nothing if it never ran."""
        return {} if self.fingerprint is None else CalibrationFile.of(self.fingerprint).read()

    def named(self, result: Result) -> Result:
        """The result with what only this object knows: the model's name, its dtype and loading time."""
        return replace(result, model=self.name, dtype=self.dtype, load_seconds=self.load_seconds)


def take_constraint(options: Mapping[str, Any]) -> tuple[Constraint | None, dict[str, Any]]:
    """The constraint that `schema`, `regex`, `grammar` or `constraint` stand for, and the other options.

    Raises ConfigError if more than one is given, and ConstraintError.
    """
    make: dict[str, Callable[[Any], Constraint]] = {
        "schema": json_schema,
        "regex": regex,
        "grammar": grammar,
        "constraint": lambda constraint: constraint,
    }
    given = [name for name in make if options.get(name) is not None]
    if len(given) > 1:
        raise ConfigError(f"an answer can follow one constraint, and these are given: {', '.join(given)}")
    rest = {key: value for key, value in options.items() if key not in make}
    return (make[given[0]](options[given[0]]) if given else None), rest


def split_options(options: Mapping[str, Any]) -> tuple[SamplingParams, DecodeConfig]:
    """Sort options into the two configs; `stop` may be one string.

    Raises ConfigError that names unknown options and lists the known.
    """
    if isinstance(options.get("stop"), str):
        options = {**options, "stop": (options["stop"],)}
    sampling = {key: value for key, value in options.items() if key in SamplingParams.model_fields}
    decode = {key: value for key, value in options.items() if key in DecodeConfig.model_fields}
    if unknown := sorted(options.keys() - sampling.keys() - decode.keys()):
        known = ", ".join([*SamplingParams.model_fields, *DecodeConfig.model_fields])
        raise ConfigError(f"unknown options: {', '.join(unknown)} (known: {known})")
    return SamplingParams.parse(sampling, "options"), DecodeConfig.parse(decode, "options")


def load(
    model: str | Path = DEFAULT_MODEL,
    *,
    adapter: Literal["auto"] | str | Path | None = "auto",
    skills: Literal["auto"] | str | Path | None = "auto",
    dtype: DTypeName = "auto",
    max_rows: int = MAX_ROWS,
    progress: bool = True,
) -> LM:
    """Load a model for generation.

    `model`: a shelf name (fetched if need be), a folder, a GGUF file or a hub id. `adapter`: a file, None, or "auto":
    the one in the package that was made for these weights, or the checkpoint's own preview parameters, if it has any.
    `skills`: a file of deltas that are merged into the weights (`checkpoint.skills_file`), None, or "auto": those that
    the shelf gives this name. With other skills they are other weights, for adapters as for everything else.
    `dtype`: how products are computed; "auto" is chosen by the machine and the model (`dtypes.choose`), and the LM's
    and every result's `dtype` say what it was. `max_rows`: row budget of a decoding pass, of which requests
    take what is worth its time.
    Weights of larger models are kept as they are multiplied (`checkpoint.prepared`); the LM's `notes` say where that
    failed.
    Raises NotFoundError, DownloadError or a CheckpointError; AdapterMismatchError if a named adapter, or skills, were
    made for other weights.
    """
    started = time.perf_counter()
    dtypes.check(dtype)  # a typing error should not wait for a download
    checkpoint = open_checkpoint(model, skills=skills, progress=progress)
    path = packaged_adapter(checkpoint) if adapter == "auto" else adapter
    network = Transformer(checkpoint.config)
    if path is not None:
        network.adapter = read_adapter(Path(path), checkpoint)
    elif adapter is not None and checkpoint.config.preview is not None:
        network.adapter = native_adapter(checkpoint)
    chosen = dtypes.resolve(dtype, checkpoint.config, checkpoint.four_bit).dtype
    notes: list[str] = []
    if network.adapter is not None and network.adapter.config.base_fingerprint not in ("", checkpoint.fingerprint()):
        notes.append("the adapter was trained without these skills: fewer of its drafts are right")
    products = products_of(network)
    weights = PreparedWeights.default().tensors(checkpoint, dtypes.as_torch(chosen), products, notes.append)
    network.fill(weights, dtypes.as_torch(chosen))
    network.requires_grad_(False)
    tokenizer = checkpoint.tokenizer()
    seconds = time.perf_counter() - started
    return LM(
        network,
        tokenizer,
        name=checkpoint.name,
        dtype=chosen,
        load_seconds=seconds,
        max_rows=max_rows,
        notes=notes,
        fingerprint=checkpoint.fingerprint(),
    )


def products_of(network: Transformer) -> Products:
    """Which of the model's weights are multiplied in the dtype that it is loaded in. Attach an adapter before."""
    names, stacked = {"head.weight"}, set()
    for owner, module in network.named_modules():
        if isinstance(module, Linear) and not module.precise:
            names.add(f"{owner}.weight")
        elif isinstance(module, Experts):
            stacked |= {f"{owner}.gate_up", f"{owner}.down"}
    names |= stacked
    tied = network.config.tie_embeddings
    if tied or (network.adapter is not None and network.adapter.chain is not None):
        names.discard("head.weight")  # its rows are read as well, in float32
    return Products(frozenset(names), frozenset({"head.weight"}), frozenset(stacked), "head.weight" if tied else None)


def packaged_adapter(checkpoint: Checkpoint) -> Path | None:
    """The adapter in the package that was made for these weights, by fingerprint, however the model was named.

    With skills that no adapter was made for, the one for the weights without them.
    """
    shelf = Shelf.default()
    base = checkpoint.base_fingerprint()
    paths = [shelf.adapter_path(name) for name, entry in sorted(shelf.entries.items()) if entry.fingerprint == base]
    made_for = {read_adapter_config(path).base_fingerprint: path for path in paths if path is not None}
    return made_for.get(checkpoint.fingerprint(), made_for.get(base))


def read_adapter(path: Path, checkpoint: Checkpoint) -> Adapter:
    """An adapter file as a float32 module. Raises CheckpointErrors, AdapterMismatchError among them."""
    config, tensors = load_adapter(path)
    check_base(config, checkpoint)
    with torch.device("meta"):  # no storage that the file's tensors would only take the place of
        adapter = Adapter(config, checkpoint.config)
    wanted = {name: tuple(p.shape) for name, p in adapter.named_parameters()}
    given = {name: tuple(t.shape) for name, t in tensors.items()}
    if wanted != given:
        faults = sorted(wanted.items() ^ given.items())
        raise TensorMismatchError(f"{path}: tensors that are missing, unexpected or mis-shaped: {faults[:8]}")
    adapter.load_state_dict({name: tensors.pop(name).float() for name in wanted}, assign=True)
    return adapter


def native_adapter(checkpoint: Checkpoint, config: ModelConfig | None = None) -> Adapter:
    """The preview parameters of a checkpoint that is a diffusion model by itself (clover_moe).

    `config`: the checkpoint's own, or one that differs from it in how it previews.
    """
    adapter = Adapter.native(config or checkpoint.config, checkpoint.name)
    adapter.load_state_dict(checkpoint.preview_tensors(torch.float32))
    return adapter
