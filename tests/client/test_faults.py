"""Errors are sorted by what can be done about them, whoever raised them."""

from __future__ import annotations

import json
import ssl

import anyio
import httpcore2
import httpx2
import openai
import pytest
from openai import Timeout

from outlive.client.actions import Kind
from outlive.client.faults import classify, interrupted
from outlive.client.plans import Plan

REQUEST = httpx2.Request("GET", "http://127.0.0.1/")


class LegacyError(Exception):
    """As an SDK would raise it whose HTTP library is not even installed here."""


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
def test_whatever_breaks_a_connection_is_a_loss(error: Exception) -> None:
    assert classify(error).kind is classify(error, reading=True).kind is Kind.LOST


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Kind.REFUSED), (401, Kind.FINAL), (403, Kind.FINAL), (404, Kind.MISSING), (405, Kind.REFUSED),
        (408, Kind.BUSY), (409, Kind.BUSY), (410, Kind.REFUSED), (422, Kind.REFUSED), (425, Kind.BUSY),
        (429, Kind.BUSY), (500, Kind.BUSY), (502, Kind.BUSY), (503, Kind.BUSY), (504, Kind.BUSY), (529, Kind.BUSY),
    ],
)  # fmt: skip
def test_statuses_are_sorted(status: int, kind: Kind) -> None:
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
def test_nonsense_is_a_fault_of_the_stream_only_while_one_is_read(error: Exception) -> None:
    assert classify(error, reading=True).kind is Kind.GARBLED
    assert classify(error).kind is Kind.FINAL


@pytest.mark.parametrize("error", [TypeError("x"), KeyError("x"), openai.OpenAIError("no key")])
def test_bugs_and_wrong_arguments_are_final(error: Exception) -> None:
    assert classify(error, reading=True).kind is Kind.FINAL


def test_an_interrupted_step_may_have_happened() -> None:
    fault = interrupted(KeyboardInterrupt())
    assert fault.kind is Kind.LOST
    assert isinstance(fault.error.__cause__, KeyboardInterrupt)


def test_a_held_get_has_its_wait_on_top_of_whatever_timeout_there_is() -> None:
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
