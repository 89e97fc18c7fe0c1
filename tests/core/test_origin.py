"""The ids and the trace context that requests come with, and that go on to upstreams."""

from __future__ import annotations

import pytest

from outlive.core.origin import Origin, is_request_id, read_trace

TRACE = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (TRACE, TRACE),
        ("", ""),
        (TRACE.upper(), ""),
        (TRACE + "-more", ""),
        (f"00-{'0' * 32}-{'b' * 16}-01", ""),
        (f"00-{'a' * 32}-{'0' * 16}-01", ""),
        (f"ff-{'a' * 32}-{'b' * 16}-01", ""),
    ],
)
def test_only_a_valid_trace_context_is_taken(given: str, taken: str) -> None:
    assert read_trace(given, "vendor=1") == (taken, "vendor=1" if taken else "")


@pytest.mark.parametrize("state", ["a\r\nb", "x" * 513, "é"])
def test_a_trace_state_that_cannot_be_a_header_is_dropped(state: str) -> None:
    assert read_trace(TRACE, state) == (TRACE, "")


@pytest.mark.parametrize("text", ["r-1", "req_019a", "Root=1-67891233-abcdef012345678912345678", "a" * 128])
def test_ids_as_proxies_make_them_are_taken(text: str) -> None:
    assert is_request_id(text)


@pytest.mark.parametrize("text", ["", "a b", "a\n", "a" * 129, "-a", "é", "a;b", 'a"b'])
def test_ids_that_could_disturb_a_log_or_a_header_are_not_taken(text: str) -> None:
    assert not is_request_id(text)


def test_headers_have_an_id_that_is_unique_and_the_trace() -> None:
    assert Origin("r-1").headers("7") == {"x-request-id": "r-1.7"}
    assert Origin().headers("7") == {"x-request-id": "7"}
    traced = Origin("r-1", 0.0, TRACE, "vendor=1")
    assert traced.headers("7") == {"x-request-id": "r-1.7", "traceparent": TRACE, "tracestate": "vendor=1"}
    assert traced.trace_id == "a" * 32
