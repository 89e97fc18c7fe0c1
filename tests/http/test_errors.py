"""Errors on the wire: status, type, code and headers."""

from __future__ import annotations

import pytest

from outlive.core.errors import UpstreamFault
from outlive.http.errors import describe


def test_a_rate_limited_upstream_is_a_rate_limit_error_with_its_pause() -> None:
    fault = UpstreamFault("Slow down.", code="rate_limit_exceeded", status=429, retry_after=7.0)
    status, body, headers = describe(fault)
    assert (status, headers) == (429, {"retry-after": "7"})
    assert body["error"] == {
        "message": "Slow down.",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }


@pytest.mark.parametrize(
    ("fault", "status", "type_"),
    [
        (UpstreamFault("No.", code="invalid_prompt", status=400), 400, "invalid_request_error"),
        (UpstreamFault("Too long.", too_long=True), 400, "invalid_request_error"),
        (UpstreamFault("Overloaded.", status=529), 529, "server_error"),
        (UpstreamFault("Odd.", status=600), 502, "server_error"),
        (UpstreamFault("Odd.", status=999), 502, "server_error"),
        (UpstreamFault("Broke."), 502, "server_error"),
        (UpstreamFault("Bad.", code="invalid_prompt"), 400, "invalid_request_error"),
        (UpstreamFault("Slowly.", code="rate_limit_exceeded"), 429, "rate_limit_error"),
        (UpstreamFault("Silent.", timed_out=True), 504, "server_error"),
    ],
)
def test_an_upstream_fault_has_the_type_of_its_status(fault: UpstreamFault, status: int, type_: str) -> None:
    found, body, _ = describe(fault)
    assert (found, body["error"]["type"]) == (status, type_)
