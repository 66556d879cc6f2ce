"""A server of its own for a measurement or a picture."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent


@contextmanager
def served(model: str) -> Iterator[str]:
    """The address of a server that runs meanwhile."""
    command = [sys.executable, "-m", "trifolium", "serve", "--model", model, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert server.stderr is not None
    try:
        for line in server.stderr:
            if match := re.search(r"http://[\d.]+:\d+", line):
                yield match[0]
                return
        raise SystemExit("the server did not start")
    finally:
        server.terminate()
        server.wait()
