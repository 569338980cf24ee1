"""A Hugging Face Hub on the loopback interface: the endpoints that a download uses, no more."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Repo:
    """One repository.

    Attributes:
        files: Path to content.
        closed: The error code that every request without the right token gets.
        token: The token that opens it.
        cuts: Path to where the connection drops while it is sent: one offset for each request,
            until none is left.
    """

    files: dict[str, bytes]
    closed: str | None = None
    token: str = "let-me-in"
    cuts: dict[str, list[int]] = field(default_factory=dict)

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr(sorted(self.files)).encode()).hexdigest()


@dataclass
class Hub:
    """A running server. ``requests`` lists (method, path, Range header)."""

    repos: dict[str, Repo]
    url: str = ""
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        rest = parts[4:] if api else parts[2:]
        repo = self.hub.repos.get(name)
        if repo is None:
            return self._error(401, "RepoNotFound")
        if repo.closed and self.headers.get("Authorization") != f"Bearer {repo.token}":
            return self._error(403 if repo.closed == "GatedRepo" else 401, repo.closed)
        revision = rest[1] if len(rest) > 1 else "main"
        if revision not in ("main", "v1", repo.sha):
            return self._error(404, "RevisionNotFound")
        if api and rest[:1] == ["tree"]:
            entries = [
                {"type": "file", "path": p, "size": len(c), "oid": _etag(c)}
                for p, c in repo.files.items()
            ]
            return self._json(entries)
        if api:
            siblings = [{"rfilename": p} for p in repo.files]
            return self._json({"id": name, "sha": repo.sha, "siblings": siblings})
        file = "/".join(rest[2:])
        if rest[0] != "resolve" or file not in repo.files:
            return self._error(404, "EntryNotFound")
        return self._file(repo, file, body)

    def _file(self, repo: Repo, file: str, body: bool) -> None:
        content = repo.files[file]
        start = 0
        if (asked := self.headers.get("Range")) and body:
            start = int(asked.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{_etag(content)}"')
        self.send_header("X-Repo-Commit", repo.sha)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if not body:
            return
        cut = cuts.pop(0) if (cuts := repo.cuts.get(file)) else None
        self.wfile.write(content[start:] if cut is None else content[start:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _error(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"{code} for {self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()


def _etag(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def serve(repos: dict[str, Repo]) -> Iterator[Hub]:
    """Serve ``repos`` until the block ends."""
    hub = Hub(repos)
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
