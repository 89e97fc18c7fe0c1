"""The desk where client programs, in whatever language, ask about the model and have the network spoilt."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from clients.model import Model
from tests.support.proxy import Cut, Proxies, Proxy
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream


class Desk:
    """Three things can be had, each by one GET: `/asked?model=` is all that the model was asked, `/open?model=` lets
    a held model go on once it is held, `/cut?frames=&how=` is an address of the server whose first answer breaks off
    after so many events."""

    def __init__(self, upstream: FakeUpstream, model: Model, server: OutliveServer) -> None:
        self._upstream = upstream
        self._model = model
        self._server = server
        self._proxies = Proxies()
        self._cutting: list[Proxy] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _answering(self))

    def __enter__(self) -> Self:
        self._proxies.__enter__()
        threading.Thread(target=self._http.serve_forever, daemon=True, name="desk").start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        for proxy in self._cutting:
            proxy.__exit__(kind, error, traceback)
        self._proxies.__exit__(kind, error, traceback)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def serve(self, wish: str, **words: str) -> Any:
        if wish == "asked":
            return self._upstream.bodies(words["model"])
        if wish == "open":
            gate = self._model.gate(words["model"])
            gate.wait_reached()
            gate.open()
            return True
        assert wish == "cut", wish
        how: Any = words["how"]
        proxy = self._proxies.to(self._server.port, Cut(frames=int(words["frames"]), how=how))
        self._cutting.append(proxy)
        return proxy.base_url


def _answering(desk: Desk) -> type[BaseHTTPRequestHandler]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            found = desk.serve(
                parts.path.strip("/"), **{name: values[0] for name, values in parse_qs(parts.query).items()}
            )
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Answer
