"""Requests made from the server's own OpenAPI document, valid and not: `make fuzz`, and a short run in the tests.

    python tests/fuzz.py --seconds 600

Serves a tiny random model on a free port, and runs schemathesis against it. Exits with 0 if no response was a server
error, of an undocumented shape, status or type, and no request is left in the engine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "helpers"))

from running_server import RunningServer, running
from tiny_engine import write_folder

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
SETTINGS = {"max_tokens": 6, "timeout": 30.0}


def fuzz(
    server: RunningServer, seconds: int, seed: int, phases: str = "examples,coverage,fuzzing,stateful"
) -> subprocess.CompletedProcess[str]:
    """Run schemathesis for so long; what it found is on stdout."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json", "--seed", str(seed)]
    command += ["--max-time", str(seconds), "--checks", ",".join(CHECKS), "--warnings", "off", "--no-shrink"]
    command += ["--phases", phases, "--suppress-health-check", "all", "--continue-on-failure"]
    if key := server.settings.api_key:
        command += ["--header", f"Authorization: Bearer {key}"]
    with tempfile.TemporaryDirectory() as empty:
        return subprocess.run(command, cwd=empty, capture_output=True, text=True, check=False, env=dict(os.environ))


def main() -> None:
    """Parse the command line, fuzz, and exit."""
    parser = argparse.ArgumentParser(description="Fuzz a server by its own OpenAPI document.")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = write_folder(Path(made) / "tiny").path
        with running(folder, **SETTINGS) as server:
            done = fuzz(server, given.seconds, given.seed)
            print(done.stdout, done.stderr, sep="\n")
            server.wait_until_idle()
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
