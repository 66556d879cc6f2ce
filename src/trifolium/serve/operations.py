"""Models, tokens, health and counters."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import Field

from .errors import ApiError
from .fields import Body, Several, shown
from .service import Service, service_of
from .shapes import ERRORS, Health, Model, ModelList, Text, Tokens
from .streaming import Canvas

router = APIRouter(responses=ERRORS)


class TokenizeBody(Body):
    """`content` is plain text: special tokens in it stay text, unless `add_special`."""

    model_config = shown({"content": "Hello"}, {"content": "Hello <|im_end|>", "with_pieces": True})

    content: str
    model: str = "default"
    add_special: bool = False
    with_pieces: bool = False


class DetokenizeBody(Body):
    """Token ids of the model's vocabulary."""

    model_config = shown({"tokens": [1, 2, 3]})

    tokens: Annotated[Several[int], Field(max_length=1_000_000)]
    model: str = "default"


@router.get("/health", response_model=None, responses={200: {"model": Health}})
async def health(request: Request) -> dict[str, Any]:
    """Ready to answer: the model is loaded."""
    service = service_of(request)
    told = {"status": "ok", "model": service.models.default}
    return told if service.replica is None else {**told, "replica": service.replica}


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Counters in Prometheus's text format."""
    service = service_of(request)
    stats = {name: await worker.stats() for name, worker in service.models.loaded.items()}
    return Response(service.metrics.text(stats), media_type="text/plain; version=0.0.4")


@router.get("/v1/models", response_model=None, responses={200: {"model": ModelList}})
async def models(request: Request) -> dict[str, Any]:
    """Every model that a request may name."""
    service = service_of(request)
    return {"object": "list", "data": [_model(service, name) for name in service.models.names], "has_more": False}


@router.get("/v1/models/{name:path}", response_model=None, responses={200: {"model": Model}})
async def model(request: Request, name: str) -> dict[str, Any]:
    """One model."""
    service = service_of(request)
    if name not in service.models.names:
        raise ApiError(404, f"there is no model {name[:200]!r} here", param="model", code="model_not_found")
    return _model(service, name)


@router.post("/tokenize", response_model=None, responses={200: {"model": Tokens}})
async def tokenize(request: Request, body: TokenizeBody) -> dict[str, Any]:
    """Token ids of a text, with each one's text on request."""
    service = service_of(request)
    worker = await service.models.get(body.model)
    worker.lm.check_size(len(body.content))
    tokenizer = worker.lm.tokenizer
    tokens = await service.off_loop(tokenizer.encode, body.content, special=body.add_special)
    told: list[Any] = tokens
    if body.with_pieces:
        told = await service.off_loop(lambda: [{"id": token, "piece": tokenizer.decode([token])} for token in tokens])
    return {"tokens": told, "count": len(tokens), "max_model_len": worker.lm.model.config.max_positions}


@router.post("/detokenize", response_model=None, responses={200: {"model": Text}})
async def detokenize(request: Request, body: DetokenizeBody) -> dict[str, Any]:
    """The text of token ids."""
    service = service_of(request)
    worker = await service.models.get(body.model)
    return {"content": await service.off_loop(worker.lm.tokenizer.decode, body.tokens)}


@router.get("/trifolium/canvas.schema.json")
async def canvas_schema() -> dict[str, Any]:
    """JSON Schema of the canvases in streams."""
    return Canvas.model_json_schema()


def _model(service: Service, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": service.models.created,
        "owned_by": "trifolium",
        "type": "model",
        "display_name": name,
    }
    if (worker := service.models.loaded.get(name)) is not None:
        entry["max_model_len"] = worker.lm.model.config.max_positions
        entry["trifolium"] = {"dtype": worker.lm.dtype, "diffusion": worker.lm.model.adapter is not None}
    return entry
