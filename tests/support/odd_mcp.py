"""MCP servers that misbehave, each in another way, by path.

/good          works: `echo` returns its text
/hang-connect  never answers anything          /hang-list, /hang-call  never answers that
/html          answers with a page             /garbage       answers with what is no JSON
/elsewhere     sends to another origin         /moved         sends to /good on the same one
/deep          a schema of 60 levels           /many          a list without an end
/changing      another tool each time it is asked               /image    an image, and words beside it
/big-image     one that is too long to keep    /loud          repeats its token in errors
/gate          refuses all requests (401)      /dead          drops the connection in the middle of a call
"""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Json = dict[str, Any]

PIXEL = base64.b64encode(b"\x89PNG" + bytes(60)).decode()


class OddServer:
    """All of them on one port. `asked` holds the path and the method of each message."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.lists: Counter[str] = Counter()
        self.over = threading.Event()
        odd = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                odd.asked.append((self.path, body.get("method", "")))
                odd.answer(self, body)

            def do_GET(self) -> None:
                odd.asked.append((self.path, "GET"))
                if self.path == "/hang-connect":
                    odd.over.wait()
                send(self, 405, b"")

            do_DELETE = do_GET  # noqa: N815 (the name that its parent calls)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def __enter__(self) -> OddServer:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, to: BaseHTTPRequestHandler, body: Json) -> None:
        path, method = to.path, body.get("method", "")
        if path == "/hang-connect" or (path, method) in (("/hang-list", "tools/list"), ("/hang-call", "tools/call")):
            self.over.wait()
        elif path == "/html":
            send(to, 200, b"<html>Welcome!</html>", "text/html")
        elif path == "/garbage":
            send(to, 200, b"{nonsense", "application/json")
        elif path == "/elsewhere":
            send(to, 307, b"", location="http://localhost:1/mcp")
        elif path == "/moved":
            send(to, 307, b"", location="/good")
        elif path == "/gate":
            send(to, 401, b"")
        elif (path, method) == ("/dead", "tools/call"):
            to.close_connection = True
            to.connection.close()
        elif "id" not in body:
            send(to, 202, b"")
        else:
            send(to, 200, json.dumps({"jsonrpc": "2.0", "id": body["id"], **self.reply(to, body)}).encode())

    def reply(self, to: BaseHTTPRequestHandler, body: Json) -> Json:
        path, method = to.path, body["method"]
        if method == "initialize":
            about = {"name": "odd", "version": "1"}
            version = body["params"]["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
        if path == "/loud" and method.startswith("tools/"):
            message = f"The token {to.headers['Authorization']} of {to.headers['X-Team']} is no good."
            if method == "tools/call":
                return {"error": {"code": -32000, "message": message}}
        if method == "tools/list":
            self.lists[path] += 1
            return {"result": {"tools": self.list(path, body), **({"nextCursor": "on"} if path == "/many" else {})}}
        if method == "tools/call":
            return {"result": {"content": content(path, body["params"]["arguments"])}}
        return {"error": {"code": -32601, "message": f"There is no {method}."}}

    def list(self, path: str, body: Json) -> list[Json]:
        schema: Json = {"type": "object", "properties": {"text": {"type": "string"}}}
        if path == "/deep":
            for _ in range(60):
                schema = {"type": "object", "properties": {"in": schema}}
        if path == "/many":
            return [{"name": f"t{n}", "inputSchema": schema, "description": "x" * 20_000} for n in range(20)]
        name = f"echo{self.lists[path]}" if path == "/changing" else "echo"
        return [{"name": name, "inputSchema": schema}]


def content(path: str, arguments: Json) -> list[Json]:
    words: Json = {"type": "text", "text": str(arguments.get("text"))}
    if path == "/image":
        return [words, {"type": "image", "mimeType": "image/png", "data": PIXEL}]
    if path == "/big-image":
        return [words, {"type": "image", "mimeType": "image/png", "data": PIXEL * 3000}]
    return [words]


def send(
    to: BaseHTTPRequestHandler, status: int, body: bytes, kind: str = "application/json", location: str | None = None
) -> None:
    to.send_response(status)
    to.send_header("Content-Type", kind)
    to.send_header("Content-Length", str(len(body)))
    if location is not None:
        to.send_header("Location", location)
    to.end_headers()
    to.wfile.write(body)
