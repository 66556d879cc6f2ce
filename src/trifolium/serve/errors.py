"""What goes wrong, as a client is told: a status, one clear sentence, and a body in the shape of the API it called."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..errors import NotFoundError, ToolError, TrifoliumError, UsageError
from .log import NAME

log = logging.getLogger(NAME)

LONGEST = 1000
"""Characters of a message."""

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ApiError(Exception):
    """An answer that is an error. `param`: the field at fault. `code`: a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _sayable(message)
        self.param = None if param is None else _sayable(param)
        self.code = code
        self.headers = dict(headers or {})

    def openai(self) -> dict[str, Any]:
        """The body that OpenAI's clients read."""
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        if self.status in (401, 429):
            kind = {401: "authentication_error", 429: "rate_limit_error"}[self.status]
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic(self, request_id: str) -> dict[str, Any]:
        """The body that Anthropic's clients read."""
        message = self.message if self.param is None else f"{self.param}: {self.message}"
        told = {"type": _ANTHROPIC_TYPES.get(self.status, "api_error"), "message": message}
        return {"type": "error", "error": told, "request_id": request_id}

    def systemone(self) -> dict[str, Any]:
        """The body that clients of /v1/systemone read."""
        where = ["body"] if self.param is None else ["body", self.param]
        return {"detail": [{"loc": where, "msg": self.message, "type": self.code or "error"}]}

    def body(self, path: str, request_id: str) -> dict[str, Any]:
        """The body for a request to `path`. Not every API repeats the id there; all have it in a header."""
        if path.startswith("/v1/messages"):
            return self.anthropic(request_id)
        return self.systemone() if path == "/v1/systemone" else self.openai()


def _sayable(text: str) -> str:
    """Clients may have sent lone surrogates, which no UTF-8 body can repeat, and names that nobody wants to read."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


class Overloaded(ApiError):
    """More open requests than the server takes."""

    def __init__(self, seconds: int) -> None:
        super().__init__(
            429,
            f"the server has as many open requests as it takes: try again in {seconds} s",
            code="rate_limit_exceeded",
            headers={"Retry-After": str(seconds)},
        )


class Unsupported(ApiError):
    """A field of the original API that this server doesn't have (yet)."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(400, f"'{field}' is not supported: {why}", param=field, code="unsupported_parameter")


def api_error_of(error: BaseException) -> ApiError:
    """Any exception, as a client may see it: nothing of the server's own files or code."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ToolError):
        return ApiError(400, str(error), param=".".join(map(str, error.where)) or "tools", code="invalid_tool")
    if isinstance(error, UsageError):
        return ApiError(400, str(error))
    if isinstance(error, NotFoundError):
        return ApiError(404, str(error), code="not_found")
    if isinstance(error, TimeoutError):
        return ApiError(504, "the answer took longer than the server allows", code="timeout")
    if isinstance(error, TrifoliumError):
        log.error("%s: %s", type(error).__name__, error)
        return ApiError(500, "the model failed on this request", code="model_failure")
    log.error("unexpected", exc_info=error)
    return ApiError(500, "internal error", code="internal_error")
