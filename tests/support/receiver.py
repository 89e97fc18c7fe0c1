"""A receiver of webhooks on a free port of this machine, which may be down, refuse, redirect or hang for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

import msgspec

from tests.support.server import free_port
from tests.support.waiting import wait_until

HANG = 0  # instead of a status: no answer until the receiver stops


class Received(NamedTuple):
    """One request."""

    at: float
    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def event(self) -> tuple[str, str]:
        """The type of the event, and the id of its response."""
        payload = msgspec.json.decode(self.body)
        return payload["type"], payload["data"]["id"]


class Receiver:
    """Answers 200, unless `answers` says otherwise: those are used up one by one, with extra headers in `headers`."""

    def __init__(self) -> None:
        self.port = free_port()
        self.received: list[Received] = []
        self.answers: list[int] = []
        self.otherwise = 200
        self.headers: Mapping[str, str] = {}
        self._server: ThreadingHTTPServer | None = None
        self._stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hooks?from=outlive"

    def start(self) -> Self:
        receiver = self

        class Exchange(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.take(self)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads, allow_reuse_address = True, True

            def handle_error(self, *_: object) -> None:
                pass

        self._stopping.clear()
        self._server = Server(("127.0.0.1", self.port), Exchange)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._stopping.set()
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def take(self, exchange: Any) -> None:
        body = exchange.rfile.read(int(exchange.headers["content-length"]))
        status = self.answers.pop(0) if self.answers else self.otherwise
        self.received.append(
            Received(time.time(), {name.lower(): value for name, value in exchange.headers.items()}, body, status)
        )
        if status == HANG:
            self._stopping.wait()
            return
        exchange.send_response(status)
        for name, value in self.headers.items():
            exchange.send_header(name, value)
        exchange.send_header("content-length", "0")
        exchange.end_headers()

    def events(self, status: int = 200) -> list[tuple[str, str]]:
        """Return the events that were answered with this status, in the order in which they came."""
        return [each.event for each in list(self.received) if each.status == status]

    def wait_for(self, *events: tuple[str, str], seconds: float = 30.0) -> None:
        """Wait until each of these events was answered with 200."""
        wait_until(lambda: set(events) <= set(self.events()), f"{len(set(events))} events were received", seconds)
