"""A local server for clients of OpenAI's and Anthropic's APIs, with drafts in the stream and a page to watch them.

The way of a request: a protocol file (`chat.py`, ...) checks its body and turns it into a `Wish`; `Service.start` makes
engine requests of it; a `Worker` runs them on the model's own thread; what they tell goes back through `streaming.py`.
"""

from __future__ import annotations

from .app import create_app
from .settings import ServeSettings

__all__ = ["ServeSettings", "create_app"]
