"""A hub of one repository on localhost, with as much of the protocol as huggingface_hub asks for."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REPO = "owner/tiny"
COMMIT = hashlib.sha1(b"commit").hexdigest()


class HubServer(ThreadingHTTPServer):
    """Serves `folder` as REPO. `asked` lists (method, file); the files in `refused` are answered with 403."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder = folder
        self.asked: list[tuple[str, str]] = []
        self.refused: set[str] = set()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients hang up; that is no news."""


@contextmanager
def serving(folder: Path) -> Iterator[HubServer]:
    """A running HubServer, stopped afterwards."""
    with HubServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        files = sorted(file.name for file in self.server.folder.iterdir())
        if re.fullmatch(rf"/api/models/{REPO}(/revision/\w+)?", path):
            siblings = [{"rfilename": name} for name in files]
            self._json({"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings, "tags": []})
        elif path.startswith(f"/api/models/{REPO}/tree/"):
            sizes = {name: (self.server.folder / name).stat().st_size for name in files}
            self._json([{"type": "file", "path": name, "size": sizes[name], "oid": _etag(name)} for name in files])
        elif match := re.fullmatch(rf"/{REPO}/resolve/\w+/(.+)", path):
            self._file(match[1], body)
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})

    def _file(self, name: str, body: bool) -> None:
        self.server.asked.append((self.command, name))
        if name in self.server.refused:
            self._send(403, b"", {})
            return
        content = (self.server.folder / name).read_bytes()
        self._send(200, content, {"ETag": f'"{_etag(name)}"', "X-Repo-Commit": COMMIT}, body=body)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json", "X-Repo-Commit": COMMIT})

    def _send(self, status: int, content: bytes, headers: dict[str, str], *, body: bool = True) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


def _etag(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()
