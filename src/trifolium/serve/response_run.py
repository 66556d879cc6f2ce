"""A response of /v1/responses as it is made: its object, and the events that tell of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

from ..engine import CanvasEvent, Result, TextEvent, TokenLogprob
from ..text import Tokenizer
from ..tools import Said, ToolCall, TurnReader
from .calls import call_id, pieces
from .chat import token_of
from .errors import api_error_of
from .service import Service, finished
from .store import Stored
from .streaming import canvas_of
from .usage import passes_of
from .worker import Answer, Worker

Event = dict[str, Any]


class Run:
    """Makes one response from one answer. `stored.response` is kept up to date as events are made.

    `logprobs`: whether the text's parts name each token's.
    """

    def __init__(
        self, stored: Stored, worker: Worker, reader: TurnReader, *, drafts: bool = False, logprobs: bool = False
    ) -> None:
        self.stored = stored
        self._response = stored.response
        self._reader = reader
        self._tokenizer = worker.lm.tokenizer
        self._drafts = drafts
        self._logprobs = logprobs
        self._sequence = 0
        self._open: _OpenItem | None = None
        self._output: list[dict[str, Any]] = self._response["output"]
        self.error: BaseException | None = None

    async def events(self, service: Service, answers: Sequence[Answer]) -> AsyncIterator[Event]:
        """Every event, in order. What goes wrong ends in a response.failed, and is kept in `error`."""
        try:
            self._response["status"] = "in_progress"
            yield self._event("response.created", response=self._snapshot())
            yield self._event("response.in_progress", response=self._snapshot())
            async for _, event in service.events(answers):
                if isinstance(event, TextEvent):
                    for one in self._add(self._reader.push(event.text), event.logprobs):
                        yield one
                elif isinstance(event, CanvasEvent) and self._drafts:
                    canvas = canvas_of(event, self._response["id"], 0).model_dump()
                    yield self._event("trifolium.canvas", canvas=canvas)
                elif (result := finished(event)) is not None:
                    for one in self._finish(result):
                        yield one
        except Exception as error:
            self.error = error
            self._break_off()
            told = api_error_of(error)
            self._response |= {"status": "failed", "error": {"code": "server_error", "message": told.message}}
            yield self._event("response.failed", response=self._snapshot())
        finally:
            if self._response["status"] == "in_progress":  # whoever was listening left
                self._break_off()
                self._response["status"] = "cancelled"
            self.stored.over.set()

    def _add(self, parts: Iterable[Said | ToolCall], logprobs: Sequence[TokenLogprob] = ()) -> Iterator[Event]:
        """Events for these parts of the answer; what is known of the tokens goes to the first text among them."""
        thought = False
        for part in parts:
            if isinstance(part, ToolCall):
                yield from self._call(part)
            elif part.kind == "reasoning":
                thought = True
                yield from self._grow("reasoning", part.text, ())
            else:
                yield from self._grow("message", part.text, logprobs)
                logprobs = ()
        speaks = self._open is not None and self._open.kind == "message"
        if logprobs and not thought and (speaks or not self._reader.knows_calls):
            yield from self._grow("message", "", logprobs)

    def _call(self, call: ToolCall) -> Iterator[Event]:
        """Events for a call, which comes whole."""
        yield from self._end_item()
        index = len(self._output)
        item = {
            "id": f"fc_{self._response['id'].removeprefix('resp_')}_{index}",
            "type": "function_call",
            "status": "completed",
            "call_id": call_id(),
            "name": call.name,
            "arguments": call.arguments,
        }
        place = {"item_id": item["id"], "output_index": index}
        begun = {**item, "status": "in_progress", "arguments": ""}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        for piece in pieces(call.arguments):
            yield self._event("response.function_call_arguments.delta", **place, delta=piece)
        told = {"name": call.name, "arguments": call.arguments}
        yield self._event("response.function_call_arguments.done", **place, **told)
        self._output.append(item)
        yield self._event("response.output_item.done", output_index=index, item=dict(item))

    def _message(self) -> dict[str, Any]:
        """The whole answer as a message of a conversation that goes on."""
        texts = [item["content"][0]["text"] for item in self._output if item["type"] == "message"]
        calls = [
            {"type": "function", "function": {"name": item["name"], "arguments": item["arguments"]}}
            for item in self._output
            if item["type"] == "function_call"
        ]
        return {"role": "assistant", "content": "\n".join(texts), **({"tool_calls": calls} if calls else {})}

    def _grow(self, kind: str, piece: str, logprobs: Sequence[TokenLogprob]) -> Iterator[Event]:
        if self._open is None or self._open.kind != kind:
            yield from self._end_item()
            self._open = _OpenItem(kind, self._response["id"], len(self._output))
            self._output.append(self._open.item)
            yield self._event("response.output_item.added", output_index=self._open.index, item=self._open.shown())
            yield self._event("response.content_part.added", **self._open.place(), part=self._open.part_shown())
            self._open.item["content"].append(self._open.part)
        told = [_told(self._tokenizer, one) for one in logprobs] if self._logprobs and kind == "message" else []
        self._open.add(piece, told)
        fields = {} if kind == "reasoning" else {"logprobs": told}
        yield self._event(f"response.{self._open.words}.delta", **self._open.place(), delta=piece, **fields)

    def _end_item(self, status: str = "completed") -> Iterator[Event]:
        if (item := self._open) is None:
            return
        self._open = None
        item.item["status"] = status
        fields = {} if item.kind == "reasoning" else {"logprobs": item.part["logprobs"]}
        yield self._event(f"response.{item.words}.done", **item.place(), text=item.part["text"], **fields)
        yield self._event("response.content_part.done", **item.place(), part=item.part_shown())
        yield self._event("response.output_item.done", output_index=item.index, item=item.shown())

    def _break_off(self) -> None:
        """Nothing more comes: an item that is open stays as it is."""
        if self._open is not None:
            self._open.item["status"] = "incomplete"
            self._open = None

    def _finish(self, result: Result) -> Iterator[Event]:
        yield from self._add(self._reader.finish())
        if not self._output or self._output[-1]["type"] == "reasoning":
            yield from self._grow("message", "", ())
        cut = {"length": "max_output_tokens", "repetition": "repetition"}.get(result.finish_reason)
        yield from self._end_item("completed" if result.finish_reason == "stop" else "incomplete")
        self._response |= {
            "status": "incomplete" if cut else "completed" if result.finish_reason == "stop" else "cancelled",
            "incomplete_details": {"reason": cut} if cut else None,
            "completed_at": time.time(),
            "usage": self._usage(result),
        }
        self.stored.answered = True
        self.stored.conversation.append(self._message())
        if self._response["status"] != "cancelled":
            yield self._event(f"response.{self._response['status']}", response=self._snapshot())

    def _usage(self, result: Result) -> dict[str, Any]:
        """Reasoning is counted as its text is cut, which may be finer than the model did it."""
        thoughts = [item["content"][0]["text"] for item in self._output if item["type"] == "reasoning"]
        reasoning_tokens = sum(len(self._tokenizer.encode(thought, special=False)) for thought in thoughts)
        return {
            "input_tokens": result.prompt_tokens,
            "input_tokens_details": {"cached_tokens": result.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": result.tokens,
            "output_tokens_details": {"reasoning_tokens": min(reasoning_tokens, result.tokens)},
            "total_tokens": result.prompt_tokens + result.tokens,
            "trifolium": passes_of([result]),
        }

    def _snapshot(self) -> dict[str, Any]:
        """The response as it is now; later changes don't reach it."""
        return {**self._response, "output": deepcopy(self._output)}

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event


class _OpenItem:
    """An output item that grows: the model's reasoning, or its message."""

    def __init__(self, kind: str, response_id: str, index: int) -> None:
        self.kind = kind
        self.index = index
        stem = response_id.removeprefix("resp_")
        self.words = "reasoning_text" if kind == "reasoning" else "output_text"
        self.part: dict[str, Any] = {"type": self.words, "text": ""}
        self.item: dict[str, Any] = {"type": kind, "status": "in_progress", "content": []}
        if kind == "reasoning":
            self.item |= {"id": f"rs_{stem}_{index}", "summary": []}
        else:
            self.item |= {"id": f"msg_{stem}_{index}", "role": "assistant"}
            self.part |= {"annotations": [], "logprobs": []}

    def add(self, piece: str, logprobs: list[dict[str, Any]]) -> None:
        self.part["text"] += piece
        if logprobs:
            self.part["logprobs"] += logprobs

    def place(self) -> dict[str, Any]:
        """Where an event belongs."""
        return {"item_id": self.item["id"], "output_index": self.index, "content_index": 0}

    def shown(self) -> dict[str, Any]:
        return deepcopy(self.item)

    def part_shown(self) -> dict[str, Any]:
        return deepcopy(self.part)


def _told(tokenizer: Tokenizer, one: TokenLogprob) -> dict[str, Any]:
    top = [token_of(tokenizer, token, logprob) for token, logprob in one.top]
    return {**token_of(tokenizer, one.token, one.logprob), "top_logprobs": top}
