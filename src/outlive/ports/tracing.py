"""The port of traces, and the GenAI conventions of its spans. The classes here trace nothing, and pass on what clients
send; `telemetry/traces` exports spans."""

from random import getrandbits
from typing import Literal, Self

from outlive.core.endings import Outcome
from outlive.core.events import Json
from outlive.core.origin import Origin
from outlive.core.toolcalls import ToolCall
from outlive.ports.backend import Backend, Ending, ModelCall
from outlive.ports.ledger import Claim

SpanKindName = Literal["INTERNAL", "CLIENT", "SERVER"]


class Span:
    """A part of a trace, to the end of its `with` block."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.headers = headers  # of a request that is made within it

    def note(self, attributes: Json) -> None:
        """Add attributes; one with the name `error.type` marks it as failed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        return None


class Tracer:
    """Makes spans."""

    is_tracing = False

    def begin(self, origin: Origin, response_id: str) -> Origin:
        """Return the origin that a new response is stored with, which the spans of its trace are made from."""
        return origin

    def start(self, origin: Origin, name: str, kind: SpanKindName, attributes: Json) -> Span:
        return Span(origin.headers(f"{getrandbits(32):08x}"))

    def start_resume(self, origin: Origin, response_id: str, trace_id: str | None) -> Span:
        """Start the span of a stream that is resumed, linked to the response's trace."""
        return Span({})

    def end_response(self, claim: Claim, outcome: Outcome, at: float) -> None:
        """Record a response from its admission to its end."""

    async def close(self) -> None:
        """Export what is left, for a few seconds at most."""

    def start_model_call(self, origin: Origin, call: ModelCall, backend: Backend) -> Span:
        if not self.is_tracing:
            return self.start(origin, "", "CLIENT", {})
        operation, request = "invoke_agent" if backend.stepwise else "chat", call.request
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": backend.name,
            "gen_ai.request.model": call.model,
            "gen_ai.request.max_tokens": request.max_output_tokens,
            "gen_ai.request.temperature": request.temperature,
            "gen_ai.request.top_p": request.top_p,
            "gen_ai.conversation.id": request.conversation,
        }
        return self.start(origin, f"{operation} {call.model}", "CLIENT", attributes)

    def start_tool_call(self, origin: Origin, call: ToolCall) -> Span:
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.item_id,
            "outlive.tool.server": call.label,
            "outlive.tool.repeated": call.begun,
        }
        return self.start(origin, f"execute_tool {call.name}", "INTERNAL", attributes)


def describe_answer(ending: Ending) -> Json:
    """Return the attributes of a model's whole answer."""
    usage = ending.usage or {}
    return {
        "gen_ai.response.model": ending.model,
        "gen_ai.response.finish_reasons": [ending.reason or "stop"],
        "gen_ai.usage.input_tokens": usage.get("input_tokens"),
        "gen_ai.usage.output_tokens": usage.get("output_tokens"),
        "gen_ai.usage.cache_read.input_tokens": (usage.get("input_tokens_details") or {}).get("cached_tokens"),
    }
