"""The server's log: one JSON object a line, for programs to read."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

NAME = "trifolium.serve"


def tell(event: str, **fields: Any) -> None:
    """Write a line about something that happened, with its particulars by name."""
    logging.getLogger(NAME).info(event, extra={"fields": fields})


class JsonLines(logging.Formatter):
    """Any record as a JSON object on one line: time (UTC), level, event, what `tell` was given, and a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, in ASCII."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


@contextmanager
def log_to_stderr(*, quiet: bool) -> Iterator[None]:
    """Send the server's log, and the warnings of the HTTP server below it, to stderr; warnings only if `quiet`."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    levels = {NAME: logging.WARNING if quiet else logging.INFO, "uvicorn.error": logging.WARNING}
    logs = [logging.getLogger(name) for name in levels]
    before = [(log.level, log.propagate) for log in logs]
    for log, level in zip(logs, levels.values(), strict=True):
        log.addHandler(handler)
        log.setLevel(level)
        log.propagate = False
    try:
        yield
    finally:
        for log, (level, propagate) in zip(logs, before, strict=True):
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate
