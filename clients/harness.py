"""A live server on the scripted model, and a control server through which client programs in any language inspect the
model and inject network faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from clients.model import Model
from tests.support.proxy import Cut, Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream


class ControlServer:
    """Answers GETs: `/requests?model=` with all requests that the model received, `/release?model=` after it has
    released a held model, `/cut?frames=&how=` with an address of the server whose first answer is cut after so many
    events, `/start` with the address of another server, `/crash?base_url=&model=` after it has killed that server while
    the model was held, started it again and released the model."""

    def __init__(self, upstream: FakeUpstream, model: Model, server: OutliveServer) -> None:
        self._upstream = upstream
        self._model = model
        self._server = server
        self._opened = ExitStack()
        self._others: dict[str, OutliveServer] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(self))

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True, name="control").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._opened.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def answer(self, path: str, **query: str) -> Any:
        if path == "requests":
            return self._upstream.bodies(query["model"])
        if path == "release":
            gate = self._model.gate(query["model"])
            gate.wait_reached()
            gate.open()
            return True
        if path == "start":
            return self._start_another()
        if path == "crash":
            gate = self._model.gate(query["model"])
            gate.wait_reached()
            self._others[query["base_url"]].restart()
            gate.open()
            return True
        assert path == "cut", path
        how: Any = query["how"]
        proxy = Proxy(self._server.port, Cut(frames=int(query["frames"]), how=how))
        return self._opened.enter_context(proxy).base_url

    def _start_another(self) -> str:
        folder = self._server.folder / f"another-{len(self._others)}"
        server = self._opened.enter_context(OutliveServer(folder, self._server.upstream, *self._server.flags))
        self._others[server.base_url] = server
        return server.base_url


def _make_handler(control: ControlServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            body = json.dumps(control.answer(parts.path.strip("/"), **query)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class Harness(NamedTuple):
    server: OutliveServer
    control: ControlServer


@contextmanager
def open_harness(folder: Path, nested: bool = False) -> Iterator[Harness]:
    """Start the servers. `nested`: the upstream is another Outlive server, which speaks Responses."""
    model = Model()
    with FakeUpstream() as upstream, ExitStack() as opened:
        upstream.otherwise = model.answer
        server = OutliveServer(folder, upstream.url)
        if nested:
            inner = opened.enter_context(OutliveServer(folder / "inner", upstream.url))
            server = OutliveServer(folder, inner.base_url, "--upstream-dialect", "responses")
        opened.enter_context(server)
        with ControlServer(upstream, model, server) as control:
            yield Harness(server, control)
