"""Errors of the SDK and of HTTP libraries become faults; a GET's wait extends its timeout."""

from __future__ import annotations

import json
import ssl

import anyio
import httpcore2
import httpx2
import openai
import pytest
from openai import Timeout

from outlive.client.core import FaultKind
from outlive.client.plans import Plan
from outlive.client.sdk import classify

REQUEST = httpx2.Request("GET", "http://127.0.0.1/")


class LegacyError(Exception):
    """Error of an HTTP library that is not installed here."""


LegacyTransport = type("TransportError", (LegacyError,), {"__module__": "httpx"})
LegacyRead = type("ReadError", (LegacyTransport,), {"__module__": "httpx"})


@pytest.mark.parametrize(
    "error",
    [
        openai.APIConnectionError(request=REQUEST),
        openai.APITimeoutError(request=REQUEST),
        httpx2.RemoteProtocolError("peer closed connection"),
        httpx2.ReadTimeout("slow"),
        httpcore2.ReadError("reset"),
        httpcore2.RemoteProtocolError("half a chunk"),
        LegacyRead("reset"),
        ConnectionResetError(),
        BrokenPipeError(),
        ssl.SSLError("bad record"),
        EOFError(),
        anyio.BrokenResourceError(),
        anyio.EndOfStream(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_connection_errors_of_every_library_are_lost_connections(error: Exception) -> None:
    assert classify(error).kind is classify(error, reading=True).kind is FaultKind.LOST


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, FaultKind.BUSY) for status in (408, 409, 425, 429, 500, 502, 503, 504, 529)),
        *((status, FaultKind.REFUSED) for status in (400, 405, 410, 422)),
        *((status, FaultKind.FINAL) for status in (401, 403)),
        (404, FaultKind.MISSING),
    ],
)
def test_statuses_map_to_fault_kinds(status: int, kind: FaultKind) -> None:
    answer = httpx2.Response(status, request=REQUEST, headers={"Retry-After": "3"})
    fault = classify(openai.APIStatusError("no", response=answer, body=None))
    assert (fault.kind, fault.status, fault.headers["retry-after"]) == (kind, status, "3")


@pytest.mark.parametrize(
    "error",
    [
        UnicodeDecodeError("utf-8", b"\xe2\x80", 0, 2, "unexpected end of data"),
        json.JSONDecodeError("Expecting value", "", 0),
        openai.APIError("The server had an error", REQUEST, body={}),
    ],
    ids=lambda error: type(error).__name__,
)
def test_unparsable_bytes_are_garbled_only_while_reading_a_stream(error: Exception) -> None:
    assert classify(error, reading=True).kind is FaultKind.GARBLED
    assert classify(error).kind is FaultKind.FINAL


@pytest.mark.parametrize("error", [TypeError("x"), KeyError("x"), openai.OpenAIError("no key")])
def test_bugs_and_wrong_arguments_are_final(error: Exception) -> None:
    assert classify(error, reading=True).kind is FaultKind.FINAL


def test_interrupted_action_counts_as_a_lost_connection() -> None:
    fault = classify(KeyboardInterrupt())
    assert fault.kind is FaultKind.LOST
    assert isinstance(fault.error.__cause__, KeyboardInterrupt)


def test_wait_of_a_get_is_added_to_its_timeout() -> None:
    def arguments(given: object) -> Timeout:
        found = Plan(retrieve={"timeout": given}).retrieve_arguments(20.0, 30.0)
        assert found["extra_query"] == {"wait": "20.000"}
        timeout = found["timeout"]
        assert isinstance(timeout, Timeout)
        return timeout

    assert arguments(None) == Timeout(50.0, connect=10.0)
    assert arguments(5.0) == Timeout(25.0, connect=5.0)
    assert arguments(Timeout(7.0, connect=1.0)) == Timeout(7.0, connect=1.0, read=27.0)
    assert arguments(Timeout(None)) == Timeout(None, read=50.0)
