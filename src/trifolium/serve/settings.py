"""What a server may do, and how much."""

from __future__ import annotations

from pydantic import Field

from ..config import Frozen


class ServeSettings(Frozen):
    """How a server behaves towards its clients.

    `api_key`: clients must send it; None lets everyone in who reaches the port. `hosts`: names that clients may
    call the server by, any if empty: a web page could make its own name point here. `cors_origins`: pages of other
    origins that may call, "*" for all. `load_models`: requests may name other models of the shelf, of which
    `max_models` stay loaded. `max_open`: requests that run or wait; further ones are told to come back (429).
    `max_body`: bytes of a request, which must have arrived after `body_timeout` seconds. `max_tokens`: longest
    answer, whatever is asked. `timeout`: seconds that an answer may take. `drain`: seconds that open answers have
    to end when the server stops. `max_stored`: responses kept for later requests. `log_prompts`: write prompts and
    answers to the log.
    """

    api_key: str | None = Field(None, min_length=1, repr=False)
    hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    load_models: bool = False
    max_models: int = Field(2, ge=1)
    max_open: int = Field(256, ge=1)
    max_choices: int = Field(16, ge=1)
    max_body: int = Field(16 * 2**20, ge=1024)
    body_timeout: float = Field(60.0, gt=0)
    max_tokens: int | None = Field(None, ge=1)
    timeout: float = Field(600.0, gt=0)
    drain: float = Field(20.0, ge=0)
    max_stored: int = Field(1000, ge=0)
    log_prompts: bool = False
