"""POST /v1/fill: a text with named holes comes back whole. Every part that is given stays as it is, byte for byte."""

from __future__ import annotations

import re
from typing import Annotated, Any, Self

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field, model_validator

from ..constrain import regex
from ..engine import Result
from .conversation import template_variables
from .fields import MOST_PARTS, Body, Several, TrifoliumOptions, Wish, shown
from .service import service_of
from .shapes import ERRORS, Filled
from .structure import MOST_CHOICES, made
from .usage import chat_usage

router = APIRouter(responses=ERRORS)

LONGEST = 2000
"""Characters of a hole, at most."""

TASK = "Write this text out in full. Put what fits in the place of each [[hole]], and change nothing else."

_META = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


class Hole(Body):
    """A gap: free text of one line, unless `choices` or a `regex` say what may stand there.

    `about` is said to the model. Lengths count characters of free text.
    """

    hole: str = Field(pattern=r"^[A-Za-z_]\w{0,63}$")
    about: str | None = Field(None, max_length=1000)
    choices: Annotated[Several[str], Field(min_length=1, max_length=MOST_CHOICES)] | None = None
    regex: str | None = Field(None, min_length=1)
    min_length: int = Field(1, ge=0, le=LONGEST)
    max_length: int = Field(80, ge=1, le=LONGEST)

    def pattern(self) -> str:
        """What may fill it, as a regular expression."""
        if self.choices is not None:
            return f"(?:{'|'.join(map(escaped, self.choices))})"
        if self.regex is not None:
            return f"(?:{self.regex})"
        return rf"[^\n]{{{self.min_length},{self.max_length}}}"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.choices is not None and self.regex is not None:
            raise ValueError("a hole has choices or a regex, not both")
        if self.min_length > self.max_length:
            raise ValueError("min_length is larger than max_length")
        return self


class FillBody(Body):
    """A text in parts: strings, which stay, and holes. `instructions`: what the model should know besides."""

    model_config = shown(
        {
            "parts": ["Dear ", {"hole": "name"}, ", it is ", {"hole": "state", "choices": ["late", "lost"]}, "."],
            "instructions": "The customer is called Ada Moss.",
        }
    )

    parts: Annotated[Several[str | Hole], Field(min_length=1, max_length=MOST_PARTS)]
    model: str = "default"
    instructions: str | None = None
    temperature: float = Field(0.0, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    max_tokens: int | None = Field(None, ge=1)
    trifolium: TrifoliumOptions = TrifoliumOptions()

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [hole.hole for hole in self.holes]
        if not names:
            raise ValueError("the text has no hole")
        if len(set(names)) < len(names):
            raise ValueError("two holes have the same name")
        return self

    @property
    def holes(self) -> list[Hole]:
        """The gaps, in order."""
        return [part for part in self.parts if isinstance(part, Hole)]

    def pattern(self) -> str:
        """The whole text, as a regular expression."""
        return "".join(escaped(part) if isinstance(part, str) else part.pattern() for part in self.parts)

    def message(self) -> str:
        """What the model is asked."""
        text = "".join(part if isinstance(part, str) else f"[[{part.hole}]]" for part in self.parts)
        notes = [f"- {hole.hole}: {about}" for hole in self.holes if (about := _about(hole))]
        said = [TASK, self.instructions or "", "\n".join(notes), text]
        return "\n\n".join(part for part in said if part)

    def values(self, text: str) -> dict[str, str]:
        """What fills each hole of a finished text: the shortest, where a hole's text could end in several places."""
        groups = [re.escape(part) if isinstance(part, str) else "(.*?)" for part in self.parts]
        found = re.fullmatch("".join(groups), text, re.DOTALL)
        return {} if found is None else dict(zip((hole.hole for hole in self.holes), found.groups(), strict=True))


@router.post("/v1/fill", response_model=None, responses={200: {"model": Filled}})
async def fill(request: Request, body: FillBody) -> Response:
    """Fill the holes of a text together; everything else in it stays as it is."""
    service = service_of(request)
    constraint = made(regex, body.pattern(), "parts")
    sampling: dict[str, Any] = {"temperature": body.temperature}
    if body.top_p is not None:
        sampling["top_p"] = body.top_p
    wish = Wish(
        sampling=sampling,
        seed=None if body.seed is None else body.seed % 2**64,
        max_tokens=body.max_tokens,
        constraint=constraint,
        constrained_by="parts",
        options=body.trifolium,
    )
    worker = await service.models.get(body.model)
    messages = [{"role": "user", "content": body.message()}]
    prompt = await service.encode(worker, messages, template=template_variables(None, None, True))
    results = await service.finish(request, await service.start(worker, prompt, wish))
    service.note("fill", messages, results)
    return JSONResponse(_filled(f"fill-{request.state.request_id}", body, results[0]))


def _filled(id: str, body: FillBody, result: Result) -> dict[str, Any]:
    """The response; a text that was cut short has no values, for nobody knows where its last hole would have ended."""
    whole = result.finish_reason == "stop"
    return {
        "id": id,
        "object": "text_fill",
        "model": result.model,
        "text": result.text,
        "holes": body.values(result.text) if whole else {},
        "finish_reason": result.finish_reason,
        "usage": chat_usage([result]),
    }


def _about(hole: Hole) -> str:
    said = [] if hole.about is None else [hole.about]
    if hole.choices is not None and len(hole.choices) <= 20:
        said.append("one of " + ", ".join(hole.choices))
    return "; ".join(said)


def escaped(text: str) -> str:
    """A text as a pattern that matches just it, in the syntax that constraints have (Rust's)."""
    return _META.sub(lambda match: "\\" + match[0], text)
