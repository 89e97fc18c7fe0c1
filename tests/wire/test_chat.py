"""Chat Completions: passed through unchanged, and refused where they ask for state that only Responses keep (D12)."""

from __future__ import annotations

import asyncio
import time
from http.client import IncompleteRead
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI, RateLimitError

from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import CUT, HANG, FakeUpstream, Gate, Refuse, ending, say, text
from tests.wire.conftest import Servers

ASKED: list[Any] = [{"role": "user", "content": "Hi"}]


def test_a_completion_is_passed_through(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Hello", " there"))
    made = client.chat.completions.create(model=model, messages=ASKED, temperature=0.5, extra_body={"top_k": 3})
    assert made.choices[0].message.content == "Hello there"
    body = upstream.bodies(model)[0]
    assert (body["messages"], body["temperature"], body["top_k"]) == (ASKED, 0.5, 3)


def test_a_streamed_completion_is_passed_through_as_it_arrives(client: OpenAI, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Hello"), gate, text(" there"), *ending()])
    stream = client.chat.completions.create(model=model, messages=ASKED, stream=True)
    said = ""
    for chunk in stream:
        said += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        if said == "Hello":
            gate.open()
    assert said == "Hello there"


def test_the_async_sdk_creates_a_completion(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Hello"))

    async def run() -> str | None:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            made = await client.chat.completions.create(model=model, messages=ASKED)
            return made.choices[0].message.content

    assert asyncio.run(run()) == "Hello"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("conversation", {"id": "conv_1"}),
        ("conversation_id", "conv_1"),
        ("background", True),
        ("store", True),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_fields_of_state_are_refused_by_name(
    client: OpenAI, upstream: FakeUpstream, field: str, value: object, stream: bool
) -> None:
    model = upstream.model()
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=ASKED, stream=stream, extra_body={field: value})
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", field)
    assert field in refused.value.message
    assert "/v1/responses" in refused.value.message
    assert upstream.calls(model) == []


@pytest.mark.parametrize("value", [None, False])
@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "conversation_id", "background", "store"])
def test_null_and_false_fields_of_state_are_accepted(
    http: HttpClient, upstream: FakeUpstream, field: str, value: object
) -> None:
    model = upstream.model()
    assert http.post("/v1/chat/completions", {"model": model, "messages": ASKED, field: value}).status == 200
    assert len(upstream.calls(model)) == 1


def test_a_lenient_server_drops_fields_of_state(servers: Servers, upstream: FakeUpstream) -> None:
    lenient = servers("--lenient-chat")
    model = upstream.model()
    state = {"previous_response_id": "resp_1", "conversation": "conv_1", "background": True, "store": True}
    with HttpClient(lenient.port) as http:
        answer = http.post("/v1/chat/completions", {"model": model, "messages": ASKED, **state})
    assert answer.status == 200
    assert not set(state) & set(upstream.bodies(model)[0])


def test_a_completion_stores_nothing(http: HttpClient, server: OutliveServer, upstream: FakeUpstream) -> None:
    before = http.get("/v1/responses?limit=1").json()["first_id"]
    message = {"role": "user", "content": "canary-in-chat"}
    http.post("/v1/chat/completions", {"model": upstream.model(say("canary-said")), "messages": [message]})
    assert http.get("/v1/responses?limit=1").json()["first_id"] == before
    for path in server.folder.iterdir():
        content = path.read_bytes()
        assert b"canary-in-chat" not in content and b"canary-said" not in content


def test_the_upstreams_errors_are_passed_through(client: OpenAI, upstream: FakeUpstream) -> None:
    refusal = Refuse(429, {"error": {"message": "slow down", "type": "t", "param": None, "code": "c"}}, retry_after="7")
    with pytest.raises(RateLimitError) as refused:
        client.chat.completions.create(model=upstream.model([refusal]), messages=ASKED)
    assert "slow down" in refused.value.message
    assert refused.value.response.headers["retry-after"] == "7"


def test_a_refused_upstream_key_is_a_502_without_the_key(http: HttpClient, upstream: FakeUpstream) -> None:
    refusal = Refuse(401, {"error": {"message": "Incorrect API key provided: sk-secret"}})
    answer = http.post("/v1/chat/completions", {"model": upstream.model([refusal]), "messages": ASKED})
    assert answer.status == 502
    assert "sk-secret" not in answer.error["message"]


@pytest.mark.parametrize("status", [600, 999])
def test_a_status_that_http_does_not_have_is_a_502(http: HttpClient, upstream: FakeUpstream, status: int) -> None:
    model = upstream.model([Refuse(status)])
    answer = http.post("/v1/chat/completions", {"model": model, "messages": ASKED})
    assert answer.status == 502
    assert f"upstream says {status}" in answer.error["message"]
    assert http.create(model=upstream.model([Refuse(status, retry_after="0")]), input="Hi").status == 502


def test_an_endless_pause_in_milliseconds_is_passed_on_as_a_day(http: HttpClient, upstream: FakeUpstream) -> None:
    answer = http.create(model=upstream.model([Refuse(429, retry_after_ms="inf")]), input="Hi")
    assert (answer.status, answer.headers["retry-after"]) == (429, "86400")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_completion_is_inflated(http: HttpClient, upstream: FakeUpstream, encoding: str) -> None:
    body = {"id": "x", "choices": [{"message": {"role": "assistant", "content": "Hello " * 100}}]}
    squeezed = Refuse(200, body, content_type="application/json", content_encoding=encoding)
    answer = http.post("/v1/chat/completions", {"model": upstream.model([squeezed]), "messages": ASKED})
    assert "content-encoding" not in answer.headers
    assert answer.json() == body
    made = http.create(model=upstream.model([squeezed]), input="Hi").json()
    assert made["output"][0]["content"][0]["text"] == "Hello " * 100


def test_an_unknown_encoding_is_named_to_the_client(http: HttpClient, upstream: FakeUpstream) -> None:
    body = {"model": upstream.model([Refuse(200, "opaque", content_encoding="br")]), "messages": ASKED}
    answer = http.post("/v1/chat/completions", body)
    assert (answer.headers["content-encoding"], answer.body) == ("br", b"opaque")
    body = {"model": upstream.model([Refuse(500, "opaque", content_encoding="br")]), "messages": ASKED}
    answer = http.post("/v1/chat/completions", body)
    assert "content-encoding" not in answer.headers
    assert "opaque" not in answer.error["message"]


def test_an_interrupted_completion_is_cut_for_the_client(http: HttpClient, upstream: FakeUpstream) -> None:
    body = {"model": upstream.model([text("Once "), CUT]), "messages": ASKED, "stream": True}
    stream = http.open_stream("POST", "/v1/chat/completions", body)
    with pytest.raises((IncompleteRead, ConnectionError)):
        stream.read_rest()


def test_a_disconnect_ends_the_upstream_request(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Once "), HANG])
    stream = http.open_stream("POST", "/v1/chat/completions", {"model": model, "messages": ASKED, "stream": True})
    stream.read_frame()
    left_at = time.monotonic()
    stream.close()
    asked = upstream.calls(model)[0]
    asked.wait_disconnected()
    assert asked.disconnected_at is not None and asked.disconnected_at - left_at < 1.0


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_a_disconnect_before_the_first_chunk_ends_the_upstream_request(
    http: HttpClient, upstream: FakeUpstream, stream: bool
) -> None:
    gate = Gate()
    model = upstream.model([gate, HANG])
    connection = http.send("/v1/chat/completions", {"model": model, "messages": ASKED, "stream": stream})
    gate.wait_reached()
    connection.close()
    upstream.calls(model)[0].wait_disconnected()


def test_a_completion_without_a_model_is_refused(http: HttpClient) -> None:
    answer = http.post("/v1/chat/completions", {"messages": ASKED})
    assert answer.status == 400
    assert answer.error["param"] == "model"
