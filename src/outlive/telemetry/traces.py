"""Traces by OpenTelemetry, exported over OTLP. Imported only where an endpoint is configured.

The span of a response is exported by the node that ends it, with an id that every node derives from the response's:
spans made before a crash, or on another node, have it as their parent.
"""

import asyncio
import threading
from hashlib import sha256

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, SpanContext, SpanKind, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outlive import __version__
from outlive.core.endings import Outcome
from outlive.core.errors import UpstreamFault
from outlive.core.events import Json
from outlive.core.origin import Origin
from outlive.core.owners import split
from outlive.ports.ledger import Claim
from outlive.ports.tracing import Span, SpanKindName, Tracer

# Seconds for which an endpoint that does not answer can delay the shutdown.
CLOSE_SECONDS = 3.0

_propagator = TraceContextTextMapPropagator()


class TraceIds(RandomIdGenerator):
    """Draws ids at random, except for a span whose ids are `given`."""

    given: tuple[int, int] | None = None  # of the trace and the span

    def generate_trace_id(self) -> int:
        return self.given[0] if self.given is not None else super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self.given[1] if self.given is not None else super().generate_span_id()


class OtelSpan(Span):
    """A span of OpenTelemetry."""

    def __init__(self, span: trace.Span, origin: Origin) -> None:
        inner = msgspec.structs.replace(origin, **_inject(span))
        super().__init__(inner.headers(f"{span.get_span_context().span_id:016x}"))
        self._span = span

    def note(self, attributes: Json) -> None:
        self._span.set_attributes(_drop_empty(attributes))
        if attributes.get("error.type"):
            self._span.set_status(StatusCode.ERROR)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:  # without its message, which may hold content
            fault = error if isinstance(error, UpstreamFault) else None
            self.note({"error.type": str(fault.status or fault.code) if fault else type(error).__qualname__})
        self._span.end()


class OtelTracer(Tracer):
    """Exports spans to the endpoint that OpenTelemetry's own environment variables name."""

    is_tracing = True

    def __init__(self, node: str) -> None:
        about = {"service.name": "outlive", "service.version": __version__, "service.instance.id": node}
        resource = Resource(about).merge(OTELResourceDetector().detect())  # what the environment names wins
        self._ids = TraceIds()
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("outlive", __version__)

    def begin(self, origin: Origin, response_id: str) -> Origin:
        # This span is never ended: it is made to have the sampler decide, and made again when the response has ended.
        span = self._start_response(origin.traceparent, origin, response_id, "response", {})
        return msgspec.structs.replace(origin, client_traceparent=origin.traceparent, **_inject(span))

    def start(self, origin: Origin, name: str, kind: SpanKindName, attributes: Json) -> Span:
        parent = _extract(origin.traceparent, origin.tracestate)
        span = self._tracer.start_span(name, parent, SpanKind[kind], _drop_empty(attributes))
        return OtelSpan(span, origin)

    def start_resume(self, origin: Origin, response_id: str, trace_id: str | None) -> Span:
        linked = SpanContext(int(trace_id or "0", 16), _derive(response_id)[1], True, TraceFlags(TraceFlags.SAMPLED))
        parent = _extract(origin.traceparent, origin.tracestate)
        links = [Link(linked)] if linked.is_valid else []
        about = {"gen_ai.response.id": response_id, "outlive.request.id": origin.request_id}
        return OtelSpan(self._tracer.start_span("resume_response", parent, SpanKind.SERVER, about, links), origin)

    def end_response(self, claim: Claim, outcome: Outcome, at: float) -> None:
        request, response_id = claim.request, claim.lease.response_id
        owner, end_user = split(claim.owner)
        attributes = {
            "gen_ai.response.id": response_id,
            "gen_ai.request.model": request.model,
            "gen_ai.conversation.id": request.conversation,
            "outlive.request.id": request.origin.request_id,
            "outlive.owner": owner,
            "outlive.end_user": end_user,
            "outlive.status": outcome.status,
            "outlive.attempts": outcome.attempts,
            "outlive.resumed_at": outcome.resumed_at or None,
            "error.type": outcome.error["code"] if outcome.error is not None else outcome.reason,
        }
        parent, name = request.origin.client_traceparent, f"response {request.model}"
        span = self._start_response(parent, request.origin, response_id, name, attributes)
        if outcome.status == "failed":
            span.set_status(StatusCode.ERROR)
        span.end(int(at * 1e9))

    def _start_response(self, parent: str, origin: Origin, response_id: str, name: str, attributes: Json) -> trace.Span:
        """Start the span of a response, with the id that every node derives for it."""
        context, began = _extract(parent, origin.tracestate), int(origin.at * 1e9) or None
        self._ids.given = _derive(response_id)
        try:
            return self._tracer.start_span(name, context, SpanKind.SERVER, _drop_empty(attributes), start_time=began)
        finally:
            self._ids.given = None

    async def close(self) -> None:
        # Not in a thread of the pool, for whose end the loop would wait.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        for _ in range(int(CLOSE_SECONDS / 0.02)):
            if closing.is_alive():
                await asyncio.sleep(0.02)


def _derive(response_id: str) -> tuple[int, int]:
    """Return the ids of a response's trace, if it has none of its client's, and of its span."""
    digest = sha256(response_id.encode()).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:24])


def _extract(traceparent: str, tracestate: str) -> Context:
    return _propagator.extract({"traceparent": traceparent, "tracestate": tracestate}, Context())


def _inject(span: trace.Span) -> dict[str, str]:
    """Return the trace context of what is done within a span."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span, Context()))
    return {"tracestate": "", **carrier}


def _drop_empty(attributes: Json) -> Json:
    return {name: value for name, value in attributes.items() if value not in (None, "")}
