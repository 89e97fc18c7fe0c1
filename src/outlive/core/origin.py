"""The origin of a response: the request that created it, as logs, upstreams and traces name it."""

import re

import msgspec

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/+=@-]{0,127}")
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[\x20-\x7e]{0,512}")


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Kept with the request while a response runs, so that a worker which continues it names the same."""

    request_id: str = ""
    at: float = 0.0  # unix seconds; 0: unknown
    traceparent: str = ""  # the client's or, where traces are made, that of the response's own span
    tracestate: str = ""
    client_traceparent: str = ""  # where that is another

    @property
    def trace_id(self) -> str:
        return self.traceparent[3:35]

    def headers(self, unique: str) -> dict[str, str]:
        """Return the headers of a request made for the response. An id sent to an upstream ends with `unique`: some
        servers take it for the id of their own request, and two with the same id would disturb each other."""
        headers = {"x-request-id": f"{self.request_id}.{unique}".lstrip(".")}
        if self.traceparent:
            headers["traceparent"] = self.traceparent
            if self.tracestate:
                headers["tracestate"] = self.tracestate
        return headers


def is_request_id(text: str) -> bool:
    """Return True for an id that may be logged and passed on as it is."""
    return _REQUEST_ID.fullmatch(text) is not None


def read_trace(traceparent: str, tracestate: str) -> tuple[str, str]:
    """Return a client's trace context (W3C); empty texts when it is not valid."""
    if not _TRACEPARENT.fullmatch(traceparent):
        return "", ""
    return traceparent, tracestate if _TRACESTATE.fullmatch(tracestate) else ""
