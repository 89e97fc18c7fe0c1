"""Faults of the upstream: which are retried, which output is kept, and which errors clients get (D10, D20, D21)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from openai import APIStatusError, InternalServerError, OpenAI, RateLimitError

from tests.support.http_client import HttpClient, Json
from tests.support.server import OutliveServer, free_port
from tests.support.upstream import CUT, HANG, FakeUpstream, Refuse, Script, Step, call, ending, finish, say, text
from tests.wire import events
from tests.wire.conftest import Servers

AT_ONCE = {"retry_after": "0"}


def stream_events(http: HttpClient, model: str, **body: object) -> list[Json]:
    with http.stream(model=model, input="Hi", **body) as stream:
        return events.read_all(stream.read_rest())


# -- before any output


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
def test_a_temporary_refusal_is_retried(http: HttpClient, upstream: FakeUpstream, status: int) -> None:
    model = upstream.model([Refuse(status, **AT_ONCE)], [Refuse(status, **AT_ONCE)], say("At last."))
    received = stream_events(http, model)
    assert events.text_of(received) == "At last."
    assert len(upstream.calls(model)) == 3
    assert events.types(received).count("created") == 1
    assert received[-1]["response"]["outlive"] == {"attempts": 3, "resumed_at": []}


def test_a_temporary_refusal_is_retried_three_times(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(503, **AT_ONCE)])
    received = stream_events(http, model)
    assert len(upstream.calls(model)) == 4
    assert events.types(received) == ["created", "in_progress", "failed"]
    error = received[-1]["response"]["error"]
    assert error["code"] == "server_error"
    assert "upstream says 503" in error["message"]


def test_retry_after_is_honoured(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(429, retry_after="1")], say("At last."))
    began = time.monotonic()
    assert http.create(model=model, input="Hi").status == 200
    assert 1.0 <= time.monotonic() - began < 3.0


def test_a_retry_after_of_more_than_a_minute_fails_at_once(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(429, retry_after="3600")])
    began = time.monotonic()
    answer = http.create(model=model, input="Hi")
    assert time.monotonic() - began < 5.0
    assert answer.status == 429
    assert answer.headers["retry-after"] == "3600"
    assert len(upstream.calls(model)) == 1


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_permanent_refusal_is_not_retried(http: HttpClient, upstream: FakeUpstream, status: int) -> None:
    model = upstream.model([Refuse(status)])
    assert stream_events(http, model)[-1]["response"]["error"]["code"] == "invalid_prompt"
    assert len(upstream.calls(model)) == 1


def test_a_connection_cut_before_any_output_is_retried(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([CUT], [b": hello\n\n", CUT], say("At last."))
    assert events.text_of(stream_events(http, model)) == "At last."


def test_a_stream_that_ends_without_output_is_retried(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([b": hello\n\n"], say("At last."))
    assert events.text_of(stream_events(http, model)) == "At last."


@pytest.fixture
def alone(servers: Servers) -> Iterator[HttpClient]:
    """A server whose upstream cannot be reached."""
    dead = servers("--upstream", f"http://127.0.0.1:{free_port()}/v1")
    with HttpClient(dead.port) as http:
        yield http


def test_an_unreachable_upstream_is_a_502(alone: HttpClient) -> None:
    answer = alone.create(model="m", input="Hi")
    assert answer.status == 502
    assert answer.headers["x-should-retry"] == "false"
    assert "could not be reached" in answer.error["message"]
    assert "resp_" in answer.error["message"]
    assert "127.0.0.1" not in answer.error["message"]


# -- after some output


@pytest.mark.parametrize(
    "rest",
    [[CUT], [], [b'data: {"error": {"message": "overloaded", "code": 529}}\n\n']],
    ids=["cut", "no_finish", "error"],
)
@pytest.mark.parametrize("together", [False, True], ids=["apart", "in_one_read"])
def test_partial_output_is_kept_when_the_stream_is_cut(
    http: HttpClient, upstream: FakeUpstream, rest: list[Step], together: bool
) -> None:
    script: list[Step] = [text("Once "), text("upon"), *rest]
    if together:
        pieces = [
            step if isinstance(step, bytes) else b"data: %b\n\n" % json.dumps(step).encode()
            for step in script
            if step is not CUT
        ]
        script = [b"".join(pieces), *(step for step in rest if step is CUT)]
    model = upstream.model(script)
    final = stream_events(http, model)[-1]["response"]
    assert final["status"] == "incomplete"
    assert final["incomplete_details"]["reason"] == "interrupted"
    assert final["incomplete_details"]["message"]
    assert final["output"][0]["status"] == "incomplete"
    assert final["output"][0]["content"][0]["text"] == "Once upon"
    assert len(upstream.calls(model)) == 1  # visible output is never generated again


def test_an_interrupted_plain_create_is_a_200_with_status_incomplete(http: HttpClient, upstream: FakeUpstream) -> None:
    answer = http.create(model=upstream.model([text("Once "), CUT]), input="Hi")
    assert answer.status == 200
    assert answer.json()["incomplete_details"]["reason"] == "interrupted"
    assert answer.json()["outlive"]["reason"] == {"code": "upstream_lost", "retryable": True}


def test_an_interrupted_turn_stays_in_its_conversation(http: HttpClient, upstream: FakeUpstream) -> None:
    conversation = http.post("/v1/conversations", {}).json()["id"]
    http.create(model=upstream.model([text("Once "), CUT]), input="A story!", conversation=conversation)
    assert http.list_messages(conversation) == [("user", "A story!"), ("assistant", "Once ")]
    model = upstream.model(say("upon a time."))
    assert http.create(model=model, input="Go on.", conversation=conversation).status == 200
    assert [message["content"] for message in upstream.calls(model)[0].messages] == ["A story!", "Once ", "Go on."]


def test_a_cut_after_the_finish_loses_only_the_usage(http: HttpClient, upstream: FakeUpstream) -> None:
    final = stream_events(http, upstream.model([text("Whole."), finish(), CUT]))[-1]["response"]
    assert final["status"] == "completed"
    assert final["output"][0]["content"][0]["text"] == "Whole."


def test_an_interrupted_call_is_closed_as_incomplete(http: HttpClient, upstream: FakeUpstream) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": {}}]
    received = stream_events(http, upstream.model([call(0, '{"ci', "call_1", "weather"), CUT]), tools=tools)
    made = received[-1]["response"]["output"][0]
    assert (made["status"], made["arguments"]) == ("incomplete", '{"ci')


@pytest.mark.parametrize(
    "script",
    [
        [text("a"), b"data: not json\n\n", text("b"), *ending()],
        [text("a"), b'data: {"choices": [{"index": 0, "delta": null}]}\n\n', text("b"), *ending()],
        [text("a"), b"event: ping\ndata: {}\n\n", text("b"), *ending()],
        [text("a"), b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": {"why": "stop"}}]}\n\n', *ending()],
        [text("a"), b'data: {"choices": [{"delta": {"tool_calls": [{"index": [], "function": 3}]}}]}\n\n', *ending()],
    ],
    ids=["not_json", "null_delta", "ping", "odd_finish", "odd_call"],
)
def test_malformed_upstream_streams_always_end_the_response(
    http: HttpClient, upstream: FakeUpstream, script: Script
) -> None:
    assert stream_events(http, upstream.model(script))[-1]["response"]["status"] in ("completed", "incomplete")


# -- errors for clients


@pytest.mark.parametrize(
    ("status", "received"), [(400, 400), (404, 404), (413, 413), (422, 422), (429, 429), (500, 500), (503, 503)]
)
def test_a_plain_create_fails_with_the_status_of_its_cause(
    http: HttpClient, upstream: FakeUpstream, status: int, received: int
) -> None:
    answer = http.create(model=upstream.model([Refuse(status, **AT_ONCE)]), input="Hi")
    assert answer.status == received
    assert answer.headers["x-should-retry"] == "false"
    error = answer.error
    assert f"upstream says {status}" in error["message"]
    response_id = next(word for word in error["message"].replace(")", " ").split() if word.startswith("resp_"))
    kept = http.get(f"/v1/responses/{response_id}").json()
    assert kept["status"] == "failed"
    assert kept["error"]["code"] == error["code"]
    events.check_response(kept)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_upstream_key_is_a_502_without_the_key(http: HttpClient, upstream: FakeUpstream, status: int) -> None:
    refusal = Refuse(status, {"error": {"message": "Incorrect API key provided: sk-secret-of-the-server"}})
    answer = http.create(model=upstream.model([refusal]), input="Hi")
    assert answer.status == 502
    assert "sk-secret" not in answer.body.decode()


def test_the_sdk_does_not_retry_a_permanent_failure(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(500, **AT_ONCE)])
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=2) as client:
        with pytest.raises(InternalServerError):
            client.responses.create(model=model, input="Hi")
        assert len(upstream.calls(model)) == 4  # the retries of this server alone


def test_the_sdk_raises_an_upstreams_rate_limit_as_its_own_error(client: OpenAI, upstream: FakeUpstream) -> None:
    with pytest.raises(RateLimitError) as refused:
        client.responses.create(model=upstream.model([Refuse(429, **AT_ONCE)]), input="Hi")
    assert refused.value.code == "rate_limit_exceeded"


def test_an_idle_upstream_is_a_504(servers: Servers, upstream: FakeUpstream) -> None:
    strict = servers("--silence-seconds", "0.2")
    with HttpClient(strict.port) as http:
        model = upstream.model([HANG])
        answer = http.create(model=model, input="Hi")
        assert answer.status == 504
        assert "silent" in answer.error["message"]
        final = stream_events(http, upstream.model([text("Once "), HANG]))[-1]["response"]
        assert final["status"] == "incomplete"
        assert final["outlive"]["reason"] == {"code": "upstream_timeout", "retryable": True}
        upstream.calls(model)[0].wait_disconnected()


def test_a_run_longer_than_allowed_is_ended(servers: Servers, upstream: FakeUpstream) -> None:
    brief = servers("--run-seconds", "0.3")
    with HttpClient(brief.port) as http:
        model = upstream.model([HANG])
        answer = http.create(model=model, input="Hi")
        assert answer.status == 504
        upstream.calls(model)[0].wait_disconnected()
        final = stream_events(http, upstream.model([text("Once "), HANG]))[-1]["response"]
        assert final["incomplete_details"]["reason"] == "interrupted"


def test_a_failed_background_response_has_its_error(client: OpenAI, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model([Refuse(400)]), input="Hi", background=True)
    ended = client.responses.retrieve(made.id, extra_query={"wait": 10})
    assert ended.status == "failed"
    assert ended.error is not None and ended.error.code == "invalid_prompt"
    assert ended.output == [] and ended.usage is None


def test_an_unstored_response_fails_with_the_same_status(http: HttpClient, upstream: FakeUpstream) -> None:
    answer = http.create(model=upstream.model([Refuse(400)]), input="Hi", store=False)
    assert answer.status == 400
    assert "upstream says 400" in answer.error["message"]
    received = stream_events(http, upstream.model([text("Once "), CUT]), store=False)
    assert received[-1]["response"]["incomplete_details"]["reason"] == "interrupted"


def test_the_helper_raises_on_a_failed_stream(client: OpenAI, upstream: FakeUpstream) -> None:
    with client.responses.stream(model=upstream.model([Refuse(400)]), input="Hi") as stream:
        seen = [event.type for event in stream]
        with pytest.raises(RuntimeError):
            stream.get_final_response()
    assert seen[-1] == "response.failed"


def test_an_html_answer_fails_the_response(client: OpenAI, upstream: FakeUpstream) -> None:
    page = Refuse(200, "<html>It works!</html>", content_type="text/html")
    with pytest.raises(APIStatusError) as refused:
        client.responses.create(model=upstream.model([page]), input="Hi")
    assert refused.value.status_code == 502
