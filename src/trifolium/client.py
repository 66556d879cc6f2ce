"""Talk with a running `trifolium serve`, and see its canvas resolve.

    from trifolium.client import Canvas, Client, Finished, Text

    with Client("http://127.0.0.1:8000") as client:
        for event in client.chat("Name the capital of France.", drafts=True):
            if isinstance(event, Text):
                print(event.text, end="", flush=True)  # final, never changes
            elif isinstance(event, Canvas):
                print(event.preview())  # provisional: the next one replaces it
            elif isinstance(event, Finished):
                print(event.usage["trifolium"]["tokens_per_pass"])

Any client of OpenAI's API works with the server too; this one needs nothing but httpx, and knows the drafts.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import httpx

from .errors import ConfigError, ServerError

__all__ = ["AsyncClient", "Canvas", "Cell", "Client", "Event", "Finished", "Text"]

Messages = Sequence[Mapping[str, Any]]

URL = "http://127.0.0.1:8000"
PATH = "/v1/chat/completions"
OWN_FIELDS = ("messages", "model", "n", "stream", "stream_options")


@dataclass(frozen=True)
class Text:
    """Text that is final. `reasoning`: it belongs to what a model thinks before it answers."""

    text: str
    reasoning: bool = False


@dataclass(frozen=True)
class Cell:
    """One position of a canvas; `token` is None and `text` empty where it is masked."""

    state: Literal["masked", "proposed", "pinned"]
    token: int | None
    text: str
    confidence: float


@dataclass(frozen=True)
class Canvas:
    """The unfinished end of the answer: provisional, and replaced by the next one.

    `block_start`: position of the first cell, counted from the prompt's beginning.
    """

    block_start: int
    cells: tuple[Cell, ...]

    def preview(self, mask: str = "░") -> str:
        """The cells' text, with `mask` where there is none yet."""
        return "".join(mask if cell.state == "masked" else cell.text for cell in self.cells)


@dataclass(frozen=True)
class Finished:
    """The last event: the whole answer, why it ended ("stop" or "length"), and what it took."""

    text: str
    finish_reason: str
    usage: Mapping[str, Any] = field(repr=False)


Event = Text | Canvas | Finished


class Client:
    """A server of `trifolium serve`, or anything that speaks as it does.

    `timeout`: seconds that the server may be silent. Close it, or use it as a context manager.
    """

    def __init__(self, url: str = URL, *, api_key: str | None = None, timeout: float = 600.0) -> None:
        self._http = httpx.Client(**_options(url, api_key, timeout))

    def chat(
        self, messages: str | Messages, *, drafts: bool = False, model: str = "default", **fields: Any
    ) -> Iterator[Event]:
        """Ask, and follow the answer: final Text, with `drafts` also each Canvas, and Finished at the end.

        `messages`: a conversation, or what the user says. `fields`: any other field of a chat completion, such as
        `max_completion_tokens` or `temperature`, and `trifolium`: its own options. Leaving the iterator cancels the
        answer. Raises ConfigError for a field that is this method's own, ServerError if there is no answer.
        """
        return self._follow(_body(messages, drafts, model, fields))

    def _follow(self, body: dict[str, Any]) -> Iterator[Event]:
        reader = _Reader()
        with _reaching(self._http.base_url), self._http.stream("POST", PATH, json=body) as response:
            if not response.is_success:
                response.read()
                raise _refusal(response)
            for line in response.iter_lines():
                yield from reader.read(line)
            yield reader.finish()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncClient:
    """As Client, for event loops: `async for event in client.chat(...)`."""

    def __init__(self, url: str = URL, *, api_key: str | None = None, timeout: float = 600.0) -> None:
        self._http = httpx.AsyncClient(**_options(url, api_key, timeout))

    def chat(
        self, messages: str | Messages, *, drafts: bool = False, model: str = "default", **fields: Any
    ) -> AsyncIterator[Event]:
        """As Client.chat. To leave it early, close it: `async with contextlib.aclosing(client.chat(...)) as events`."""
        return self._follow(_body(messages, drafts, model, fields))

    async def _follow(self, body: dict[str, Any]) -> AsyncIterator[Event]:
        reader = _Reader()
        with _reaching(self._http.base_url):
            async with self._http.stream("POST", PATH, json=body) as response:
                if not response.is_success:
                    await response.aread()
                    raise _refusal(response)
                async for line in response.aiter_lines():
                    for event in reader.read(line):
                        yield event
                yield reader.finish()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class _Reader:
    """Makes events of a stream's lines."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reason: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._done = False

    def read(self, line: str) -> Iterator[Event]:
        """The events of a line; most have one. Raises ServerError for one that tells of an error."""
        name, _, data = line.partition(":")
        if name != "data":
            return
        if data.strip() == "[DONE]":
            self._done = True
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise _failure(None, chunk)
        self._usage = chunk.get("usage") or self._usage
        if (canvas := chunk.get("trifolium")) is not None:
            yield Canvas(canvas["block_start"], tuple(Cell(**cell) for cell in canvas["cells"]))
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if reasoning := delta.get("reasoning_content"):
                yield Text(reasoning, reasoning=True)
            if text := delta.get("content"):
                self._text.append(text)
                yield Text(text)
            self._reason = choice.get("finish_reason") or self._reason

    def finish(self) -> Finished:
        """The last event, once the stream is over. Raises ServerError if it broke off."""
        if not self._done or self._reason is None:
            raise ServerError("the server broke off in the middle of its answer")
        return Finished("".join(self._text), self._reason, self._usage)


def _options(url: str, api_key: str | None, timeout: float) -> dict[str, Any]:
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}".encode()}
    return {"base_url": url.rstrip("/").removesuffix("/v1"), "headers": headers, "timeout": timeout}


def _body(messages: str | Messages, drafts: bool, model: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    if taken := [name for name in OWN_FIELDS if name in fields]:
        raise ConfigError(f"chat() sets {', '.join(taken)} itself: it streams one answer")
    own = {**fields.get("trifolium", {}), **({"drafts": True} if drafts else {})}
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    asked = {"messages": list(messages), "model": model, "stream": True, "stream_options": {"include_usage": True}}
    return {**fields, **asked, **({"trifolium": own} if own else {})}


@contextmanager
def _reaching(url: httpx.URL) -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError as error:
        raise ServerError(f"nothing answers at {url}: is `trifolium serve` running? ({error})") from error
    except httpx.TransportError as error:
        raise ServerError(f"the connection to {url} failed: {error or type(error).__name__}") from error


def _refusal(response: httpx.Response) -> ServerError:
    try:
        return _failure(response.status_code, response.json())
    except ValueError:
        return ServerError(f"the server answers with status {response.status_code}", response.status_code)


def _failure(status: int | None, body: Any) -> ServerError:
    told = body.get("error") if isinstance(body, dict) else None
    if not isinstance(told, dict):
        raise ValueError("no error in it")
    return ServerError(str(told.get("message")), status, told.get("code"))
