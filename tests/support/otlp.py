"""An OTLP collector on a real socket, in a thread of the test: it decodes and keeps the spans that are exported."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class ExportedSpan(NamedTuple):
    """A span as it arrived; ids are written in hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    seconds: float
    failed: bool
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    resource: dict[str, Any]


class OtlpCollector:
    """Receives traces."""

    def __init__(self) -> None:
        self._spans: list[ExportedSpan] = []
        self._arrived = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces", self.path
                collector._take(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def env(self) -> dict[str, str]:
        """The variables with which a server exports to this collector, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def spans(self, name: str = "") -> list[ExportedSpan]:
        with self._arrived:
            return [span for span in self._spans if span.name.startswith(name)]

    def wait(self, name: str, count: int = 1) -> list[ExportedSpan]:
        """Wait for so many spans whose names begin so."""
        with self._arrived:
            found = self._arrived.wait_for(lambda: len(self.spans_now(name)) >= count, 40)
        assert found, [span.name for span in self._spans]
        return self.spans(name)

    def spans_now(self, name: str) -> list[ExportedSpan]:
        return [span for span in self._spans if span.name.startswith(name)]

    def _take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._arrived:
            for group in request.resource_spans:
                resource = _read(group.resource.attributes)
                for scope in group.scope_spans:
                    self._spans += [_read_span(span, resource) for span in scope.spans]
            self._arrived.notify_all()


def _read_span(span: Any, resource: dict[str, Any]) -> ExportedSpan:
    return ExportedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        span.status.code == 2,
        _read(span.attributes),
        [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        resource,
    )


def _read(attributes: Any) -> dict[str, Any]:
    return {each.key: _read_value(each.value) for each in attributes}


def _read_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_read_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
