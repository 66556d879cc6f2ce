"""The application: every protocol's routes on one service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from .. import __version__
from ..api import LM
from . import anthropic, chat, completions, decisions, fill, operations, responses
from .errors import ApiError, api_error_of
from .limits import Gate
from .metrics import Metrics
from .models import Models
from .service import Service
from .settings import ServeSettings
from .site import add_page

ROUTERS = tuple(protocol.router for protocol in (chat, completions, responses, anthropic, fill, decisions, operations))


def create_app(
    lm: LM, settings: ServeSettings, load: Callable[[str], LM] | None = None, *, replica: str | None = None
) -> FastAPI:
    """An ASGI application that serves `lm`; `load` makes other models of the shelf, if the settings allow them.

    `replica`: what /health calls this one among several.
    """
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        models = Models(lm, load or _no_others, settings)
        models.on_finished = metrics.answer
        app.state.service = Service(settings, models, metrics, replica)
        try:
            yield
        finally:
            await app.state.service.close()
            await models.close()

    middleware = [Middleware(Gate, settings=settings, metrics=metrics)]
    if settings.cors_origins:
        middleware.insert(
            0, Middleware(CORSMiddleware, allow_origins=settings.cors_origins, allow_methods=["*"], allow_headers=["*"])
        )
    app = FastAPI(
        title="Trifolium",
        version=__version__,
        lifespan=lifespan,
        middleware=middleware,
        docs_url=None,  # its page asks other hosts for scripts
        redoc_url=None,
        redirect_slashes=False,
    )
    for router in ROUTERS:
        app.include_router(router)

    add_page(app)
    app.exception_handler(ApiError)(_refuse)
    app.exception_handler(RequestValidationError)(_refuse_body)
    app.exception_handler(HTTPException)(_refuse_route)
    app.exception_handler(Exception)(_refuse)
    return app


def _no_others(name: str) -> LM:
    raise ApiError(404, f"model {name!r} is not loaded", param="model", code="model_not_found")


def _answer(request: Request, error: ApiError) -> JSONResponse:
    return JSONResponse(error.body(request.url.path, request.state.request_id), error.status, error.headers)


async def _refuse(request: Request, error: Exception) -> JSONResponse:
    return _answer(request, api_error_of(error))


async def _refuse_route(request: Request, error: HTTPException) -> JSONResponse:
    if isinstance(error.__cause__, ApiError):  # of reading the body
        return _answer(request, error.__cause__)
    texts = {404: "there is nothing at this path", 405: f"{request.method} is not what this path takes"}
    message = texts.get(error.status_code, str(error.detail))
    return _answer(request, ApiError(error.status_code, message, headers=error.headers))


async def _refuse_body(request: Request, error: RequestValidationError) -> JSONResponse:
    """The first fault of a body, by the name of its field. What was sent is not repeated."""
    fault = error.errors()[0]
    field = ".".join(str(part) for part in fault["loc"][1:]) or None
    kind, message, code = fault["type"], fault["msg"], "invalid_value"
    if kind == "json_invalid":
        field, message, code = None, f"the body is not JSON: {fault['ctx']['error']}", "invalid_json"
    elif kind == "extra_forbidden":
        message, code = f"unknown parameter {field!r}", "unknown_parameter"
    elif kind == "missing" and field is not None:
        message, code = f"the parameter {field!r} is missing", "missing_parameter"
    elif field is None:
        message = "the body must be a JSON object, sent with 'Content-Type: application/json'"
    return _answer(request, ApiError(400, message, param=field, code=code))
