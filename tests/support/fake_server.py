"""A real HTTP server in a thread of the test, whose answers an object gives."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class FakeServer(ThreadingHTTPServer):
    """A server on a free port that passes every request to the method `answer` of an object."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a client that disconnects early is expected, and the output of commands is compared."""

    def __init__(self, behaviour: Any) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.behaviour = behaviour

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # the base class would look up this machine's name
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Exchange(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *_: object) -> None:
        pass

    def handle_any(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length)
        parts = urlsplit(self.path)
        self.close_connection = True
        self.server.behaviour.answer(
            self, self.command, parts.path, parse_qs(parts.query), json.loads(raw) if raw else None
        )

    do_GET = do_POST = do_DELETE = handle_any  # noqa: N815 - the names that http.server calls

    def json(self, status: int, value: object) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def error(self, status: int, message: str) -> None:
        self.json(status, {"error": {"message": message, "type": "x", "param": None, "code": None}})

    def stream(self, frames: list[str], clean_end: bool = True) -> None:
        """Send frames as chunks; without a clean end, just close the connection."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for frame in frames:
            body = frame.encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(body), body))
        if clean_end:
            self.wfile.write(b"0\r\n\r\n")


@contextmanager
def serving(behaviour: Any) -> Iterator[str]:
    """Run a server with this behaviour; return its base URL."""
    server = FakeServer(behaviour)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
