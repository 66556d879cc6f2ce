"""A request as it was asked, and as it runs: its tokens, text, limits and counts."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import DecodeConfig, SamplingParams
from ..errors import PromptError, UsageError
from ..model import RequestState
from .events import CanvasEvent, Cell, Event, FinishedEvent, FinishReason, Result, TextEvent, TokenLogprob
from .repeats import Repeats
from .sampling import Sampler, logprob_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..constrain import Constraint, Guide
    from ..text import Tokenizer


_GREEDY = SamplingParams.parse({}, "defaults")
_DEFAULT = DecodeConfig.parse({}, "defaults")


@dataclass(frozen=True)
class Request:
    """What a caller asks for: a prompt as token ids, how to choose tokens, how to decode, and what must come out.

    `thinking`: the prompt ends inside an open think block, which a budget for thinking counts from its start.
    """

    prompt: Sequence[int]
    sampling: SamplingParams = _GREEDY
    decode: DecodeConfig = _DEFAULT
    constraint: Constraint | None = None
    thinking: bool = False

    def check(self, vocab_size: int, max_positions: int, has_tokenizer: bool) -> None:
        """Raises PromptError or UsageError if the model can't serve this."""
        if not self.prompt:
            raise PromptError("the prompt is empty")
        if len(self.prompt) >= max_positions:
            raise PromptError(
                f"the prompt has {len(self.prompt)} tokens, which leaves no room for an answer "
                f"in the model's context of {max_positions}"
            )
        if not all(0 <= token < vocab_size for token in self.prompt):
            raise PromptError(f"the prompt holds a token outside the vocabulary of {vocab_size}")
        if outside := [token for token in self.sampling.logit_bias if token >= vocab_size]:
            raise UsageError(f"logit_bias names tokens outside the vocabulary of {vocab_size}: {outside[:8]}")
        if self.decode.stop and not has_tokenizer:
            raise UsageError("stop strings need a tokenizer")
        if self.constraint is not None and not has_tokenizer:
            raise UsageError("constraints need a tokenizer")


class TextOut:
    """Text of one answer as it grows, cut before a stop string."""

    def __init__(self, tokenizer: Tokenizer | None, stops: Sequence[str]) -> None:
        from ..text import IncrementalDetokenizer, StopMatcher

        self._detokenizer = None if tokenizer is None else IncrementalDetokenizer(tokenizer)
        self._known = 0 if tokenizer is None else tokenizer.vocab_size
        self._matcher = StopMatcher(stops)
        self._parts: list[str] = []
        self._taken = 0
        self.stop: str | None = None

    def push(self, token: int) -> None:
        """Add a token; `stop` is set once a stop string is complete.

        Ids past the tokenizer's vocabulary (padding of the head, which a model may choose like any other) have no text.
        """
        if self._detokenizer is not None and token < self._known:
            self._add(self._detokenizer.push([token]))

    def finish(self) -> None:
        """The answer is over: nothing needs to be held back any more."""
        if self._detokenizer is not None:
            self._add(self._detokenizer.finish())
            self._parts.append(self._matcher.finish())

    def _add(self, text: str) -> None:
        shown, stop = self._matcher.push(text)
        self._parts.append(shown)
        self.stop = self.stop or stop

    def take(self) -> str:
        """What became final since the last call."""
        new = "".join(self._parts[self._taken :])
        self._taken = len(self._parts)
        return new

    @property
    def text(self) -> str:
        """All final text."""
        return "".join(self._parts)


class Live:
    """A request in the engine. `tokens` are prompt and emitted tokens; the last of them is not yet committed.

    `guide`: where the answer is in its constraint, if it has one.
    """

    def __init__(
        self,
        id: int,
        request: Request,
        *,
        state: RequestState,
        vocab_size: int,
        max_positions: int,
        tokenizer: Tokenizer | None = None,
        eos_ids: frozenset[int] = frozenset(),
        guide: Guide | None = None,
    ) -> None:
        self.id = id
        self.request = request
        self.state = state
        self.tokenizer = tokenizer
        self.guide = guide
        self.tokens = list(request.prompt)
        self.prompt_tokens = len(self.tokens)
        self.max_positions = max_positions
        self.limit = min(request.decode.max_tokens, max_positions - self.prompt_tokens)
        self.sampler = Sampler(request.sampling, request.prompt, vocab_size)
        self.text = TextOut(tokenizer, request.decode.stop)
        self.eos_ids = frozenset[int]() if request.decode.ignore_eos else eos_ids
        self.drafts: str = "none"
        self.notes: tuple[str, ...] = ()
        self.cached_tokens = 0
        self.accepted_by = Counter({"preview": 0, "ngram": 0})
        self.experts_read = 0.0
        self.passes = self.prompt_passes = 0
        self.seconds = self.prompt_seconds = 0.0
        self.finish_reason: FinishReason | None = None
        self.error: Exception | None = None
        self.events: deque[Event] = deque()
        self.result: Result | None = None
        self._repeats = None if request.decode.repeats is None else Repeats(request.decode.repeats)
        self._logprobs: list[TokenLogprob] | None = None if request.decode.logprobs is None else []
        self._reported = self.prompt_tokens
        self._end_if_complete()

    @property
    def position(self) -> int:
        """Position of the last emitted token."""
        return len(self.tokens) - 1

    @property
    def fresh(self) -> int:
        """Tokens that were emitted since the last report."""
        return len(self.tokens) - self._reported

    @property
    def remaining(self) -> int:
        """How many more tokens the answer may have."""
        return self.limit - (len(self.tokens) - self.prompt_tokens)

    @property
    def done(self) -> bool:
        """Whether no further pass is needed."""
        return self.finish_reason is not None or self.error is not None

    def emit(self, token: int, logprob: TokenLogprob | None = None) -> bool:
        """Make `token` the next one of the answer, or end with it. Returns whether it is part of the answer."""
        if token in self.eos_ids:
            self.finish_reason = "stop"
            return False
        self.tokens.append(token)
        if self._logprobs is not None and logprob is not None:
            self._logprobs.append(logprob)
        self.sampler.push(token, self.position)
        self.text.push(token)
        if self.guide is not None:
            self.guide.push(token)
        if self.text.stop is not None:
            self.finish_reason = "stop"
        elif not self._end_if_complete():
            if self._repeats is not None and self._repeats.push(token):
                self.finish_reason = "repetition"
            elif self.remaining == 0:
                self.finish_reason = "length"
        return True

    def _end_if_complete(self) -> bool:
        """End an answer that its constraint lets no token follow."""
        if self.guide is None or not self.guide.ended:
            return False
        self.finish_reason = "stop"
        return True

    def finish_forced(self) -> None:
        """If the answer can only end in one way, end it now: what is certain needs no pass.

        Not where log-probabilities are asked for, which only a pass can tell.
        """
        if self.guide is None or self.done or self._logprobs is not None:
            return
        run = self.guide.run(limit=self.remaining)
        if run and self.guide.after(run).ended:
            for token in run:
                self.accepted_by["forced"] += self.emit(token)

    def choose(self, logits_V: Tensor, largest: int, path: Sequence[int] = ()) -> int:
        """The token after the answer and `path`, whose logits are given; `largest` is their argmax.

        Under a constraint only what it allows is chosen from: the mask comes before penalties and everything after.
        """
        if self.guide is None:
            if self.sampler.plain_greedy:
                return largest
            return self.sampler.choose(logits_V.double().numpy(), self.position + len(path) + 1, ahead=path)
        allowed = self.guide.after(path)
        if allowed.single is not None:
            return allowed.single
        if self.sampler.plain_greedy and largest in allowed:
            return largest
        logits = logits_V.double().numpy()[allowed.ids]
        return self.sampler.choose(logits, self.position + len(path) + 1, allowed.ids, path)

    def logprob_of(self, token: int, logits_V: Tensor) -> TokenLogprob | None:
        """What the model's logits say of a token, if the request asked for it."""
        count = self.request.decode.logprobs
        return None if count is None else logprob_of(token, logits_V.double().numpy(), count)

    def show_canvas(self, cells: Sequence[Cell]) -> None:
        """Tell watchers what the canvas after the last emitted token looks like."""
        texts = tuple("" if c.token is None else self._piece(c.token) for c in cells)
        self.events.append(CanvasEvent(len(self.tokens), tuple(cells), texts))

    def _piece(self, token: int) -> str:
        if self.tokenizer is None or token >= self.tokenizer.vocab_size:
            return ""
        return self.tokenizer.decode([token], skip_special=True)

    def fail(self, error: Exception) -> None:
        """End the request with an error, and free its state."""
        self.error = error
        self.state.free()

    def report(self) -> None:
        """Queue the text that a pass brought, and the result once the request is over."""
        if self.error is not None or self.result is not None:
            return
        if self.finish_reason is not None:
            self.text.finish()
        text, new = self.text.take(), tuple(self.tokens[self._reported :])
        logprobs = tuple((self._logprobs or ())[self._reported - self.prompt_tokens :])
        self._reported = len(self.tokens)
        if text or new:
            self.events.append(TextEvent(text, new, logprobs))
        if self.finish_reason is not None:
            self.result = self._result(self.finish_reason)
            self.events.append(FinishedEvent(self.result))
            self.state.free()  # a caller may keep the handle; the memory is not the caller's

    def _result(self, reason: FinishReason) -> Result:
        return Result(
            text=self.text.text,
            token_ids=tuple(self.tokens[self.prompt_tokens :]),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            passes=self.passes,
            seconds=self.seconds,
            prompt_passes=self.prompt_passes,
            prompt_seconds=self.prompt_seconds,
            accepted_by=dict(self.accepted_by),
            experts_per_pass=self.experts_read / self.passes if self.passes else 0.0,
            finish_reason=reason,
            stop=self.text.stop,
            mode=self.request.decode.mode,
            drafts=self.drafts,
            notes=self.notes,
            constraint=self.request.constraint,
            logprobs=None if self._logprobs is None else tuple(self._logprobs),
        )
