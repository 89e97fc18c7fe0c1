"""When the upstream breaks: what is tried again, what is kept, and what the caller is told (D10, D20, D21)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from openai import APIStatusError, InternalServerError, OpenAI, RateLimitError

from tests.support.server import OutliveServer, free_port
from tests.support.upstream import CUT, HANG, FakeUpstream, Refuse, Script, Step, call, ending, finish, say, text
from tests.wire import events
from tests.wire.conftest import Servers
from tests.wire.raw import Json, Wire

AT_ONCE = {"retry_after": "0"}


def tell(wire: Wire, model: str, **body: object) -> list[Json]:
    with wire.stream(model=model, input="Hi", **body) as stream:
        return events.read_all(stream.rest())


# -- nothing was visible yet


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
def test_a_refusal_that_may_pass_is_tried_again(wire: Wire, upstream: FakeUpstream, status: int) -> None:
    model = upstream.model([Refuse(status, **AT_ONCE)], [Refuse(status, **AT_ONCE)], say("At last."))
    told = tell(wire, model)
    assert events.text_of(told) == "At last."
    assert len(upstream.calls(model)) == 3
    assert events.types(told).count("created") == 1
    assert told[-1]["response"]["outlive"] == {"attempts": 3, "resumed_at": []}


def test_it_is_tried_three_times_more_and_no_further(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(503, **AT_ONCE)])
    told = tell(wire, model)
    assert len(upstream.calls(model)) == 4
    assert events.types(told) == ["created", "in_progress", "failed"]
    error = told[-1]["response"]["error"]
    assert error["code"] == "server_error"
    assert "upstream says 503" in error["message"]


def test_retry_after_is_honoured(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(429, retry_after="1")], say("At last."))
    began = time.monotonic()
    assert wire.create(model=model, input="Hi").status == 200
    assert 1.0 <= time.monotonic() - began < 3.0


def test_a_wait_of_more_than_a_minute_is_a_failure_at_once(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(429, retry_after="3600")])
    began = time.monotonic()
    answer = wire.create(model=model, input="Hi")
    assert time.monotonic() - began < 5.0
    assert answer.status == 429
    assert answer.headers["retry-after"] == "3600"
    assert len(upstream.calls(model)) == 1


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refusal_for_good_is_not_tried_again(wire: Wire, upstream: FakeUpstream, status: int) -> None:
    model = upstream.model([Refuse(status)])
    assert tell(wire, model)[-1]["response"]["error"]["code"] == "invalid_prompt"
    assert len(upstream.calls(model)) == 1


def test_a_cut_before_anything_was_said_is_tried_again(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model([CUT], [b": hello\n\n", CUT], say("At last."))
    assert events.text_of(tell(wire, model)) == "At last."


def test_a_stream_that_ends_before_it_said_anything_is_tried_again(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model([b": hello\n\n"], say("At last."))
    assert events.text_of(tell(wire, model)) == "At last."


@pytest.fixture
def alone(servers: Servers) -> Iterator[Wire]:
    """A server whose upstream is not there."""
    dead = servers("--upstream", f"http://127.0.0.1:{free_port()}/v1")
    with Wire(dead.port) as wire:
        yield wire


def test_an_upstream_that_is_not_there_is_a_502(alone: Wire) -> None:
    answer = alone.create(model="m", input="Hi")
    assert answer.status == 502
    assert answer.headers["x-should-retry"] == "false"
    assert "could not be reached" in answer.error["message"]
    assert "resp_" in answer.error["message"]
    assert "127.0.0.1" not in answer.error["message"]


# -- something was visible


@pytest.mark.parametrize(
    "rest",
    [[CUT], [], [b'data: {"error": {"message": "overloaded", "code": 529}}\n\n']],
    ids=["cut", "no_finish", "error"],
)
@pytest.mark.parametrize("together", [False, True], ids=["apart", "in_one_read"])
def test_what_was_said_is_kept_when_the_stream_breaks(
    wire: Wire, upstream: FakeUpstream, rest: list[Step], together: bool
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
    final = tell(wire, model)[-1]["response"]
    assert final["status"] == "incomplete"
    assert final["incomplete_details"]["reason"] == "interrupted"
    assert final["incomplete_details"]["message"]
    assert final["output"][0]["status"] == "incomplete"
    assert final["output"][0]["content"][0]["text"] == "Once upon"
    assert len(upstream.calls(model)) == 1  # it is never said twice


def test_a_plain_create_that_was_interrupted_is_200_and_says_so(wire: Wire, upstream: FakeUpstream) -> None:
    answer = wire.create(model=upstream.model([text("Once "), CUT]), input="Hi")
    assert answer.status == 200
    assert answer.json()["incomplete_details"]["reason"] == "interrupted"


def test_an_interrupted_turn_stays_in_its_conversation(wire: Wire, upstream: FakeUpstream) -> None:
    conversation = wire.post("/v1/conversations", {}).json()["id"]
    wire.create(model=upstream.model([text("Once "), CUT]), input="A story!", conversation=conversation)
    assert wire.said(conversation) == [("user", "A story!"), ("assistant", "Once ")]
    model = upstream.model(say("upon a time."))
    assert wire.create(model=model, input="Go on.", conversation=conversation).status == 200
    assert [message["content"] for message in upstream.calls(model)[0].messages] == ["A story!", "Once ", "Go on."]


def test_a_cut_after_the_finish_loses_only_the_usage(wire: Wire, upstream: FakeUpstream) -> None:
    final = tell(wire, upstream.model([text("Whole."), finish(), CUT]))[-1]["response"]
    assert final["status"] == "completed"
    assert final["output"][0]["content"][0]["text"] == "Whole."


def test_a_half_call_is_closed_and_marked(wire: Wire, upstream: FakeUpstream) -> None:
    tools = [{"type": "function", "name": "weather", "parameters": {}}]
    told = tell(wire, upstream.model([call(0, '{"ci', "call_1", "weather"), CUT]), tools=tools)
    made = told[-1]["response"]["output"][0]
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
def test_oddities_of_an_upstream_never_leave_a_response_without_an_end(
    wire: Wire, upstream: FakeUpstream, script: Script
) -> None:
    assert tell(wire, upstream.model(script))[-1]["response"]["status"] in ("completed", "incomplete")


# -- what the caller is told


@pytest.mark.parametrize(
    ("status", "told"), [(400, 400), (404, 404), (413, 413), (422, 422), (429, 429), (500, 500), (503, 503)]
)
def test_a_plain_create_fails_with_the_status_of_its_cause(
    wire: Wire, upstream: FakeUpstream, status: int, told: int
) -> None:
    answer = wire.create(model=upstream.model([Refuse(status, **AT_ONCE)]), input="Hi")
    assert answer.status == told
    assert answer.headers["x-should-retry"] == "false"
    error = answer.error
    assert f"upstream says {status}" in error["message"]
    response_id = next(word for word in error["message"].replace(")", " ").split() if word.startswith("resp_"))
    kept = wire.get(f"/v1/responses/{response_id}").json()
    assert kept["status"] == "failed"
    assert kept["error"]["code"] == error["code"]
    events.check_response(kept)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_not_the_callers(wire: Wire, upstream: FakeUpstream, status: int) -> None:
    refusal = Refuse(status, {"error": {"message": "Incorrect API key provided: sk-secret-of-the-server"}})
    answer = wire.create(model=upstream.model([refusal]), input="Hi")
    assert answer.status == 502
    assert "sk-secret" not in answer.body.decode()


def test_the_sdk_does_not_retry_what_failed_for_good(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model([Refuse(500, **AT_ONCE)])
    with OpenAI(base_url=server.base_url, api_key="any", max_retries=2) as client:
        with pytest.raises(InternalServerError):
            client.responses.create(model=model, input="Hi")
        assert len(upstream.calls(model)) == 4  # ours, once


def test_the_sdk_sees_a_rate_limit_as_one(client: OpenAI, upstream: FakeUpstream) -> None:
    with pytest.raises(RateLimitError) as refused:
        client.responses.create(model=upstream.model([Refuse(429, **AT_ONCE)]), input="Hi")
    assert refused.value.code == "rate_limit_exceeded"


def test_a_silent_upstream_is_a_504(servers: Servers, upstream: FakeUpstream) -> None:
    impatient = servers("--silence-seconds", "0.2")
    with Wire(impatient.port) as wire:
        model = upstream.model([HANG])
        answer = wire.create(model=model, input="Hi")
        assert answer.status == 504
        assert "silent" in answer.error["message"]
        assert tell(wire, upstream.model([text("Once "), HANG]))[-1]["response"]["status"] == "incomplete"
        upstream.calls(model)[0].wait_left()


def test_a_run_longer_than_allowed_is_ended(servers: Servers, upstream: FakeUpstream) -> None:
    brief = servers("--run-seconds", "0.3")
    with Wire(brief.port) as wire:
        model = upstream.model([HANG])
        answer = wire.create(model=model, input="Hi")
        assert answer.status == 504
        upstream.calls(model)[0].wait_left()
        final = tell(wire, upstream.model([text("Once "), HANG]))[-1]["response"]
        assert final["incomplete_details"]["reason"] == "interrupted"


def test_a_failed_background_response_tells_its_error(client: OpenAI, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model([Refuse(400)]), input="Hi", background=True)
    ended = client.responses.retrieve(made.id, extra_query={"wait": 10})
    assert ended.status == "failed"
    assert ended.error is not None and ended.error.code == "invalid_prompt"
    assert ended.output == [] and ended.usage is None


def test_what_is_not_stored_fails_the_same_way(wire: Wire, upstream: FakeUpstream) -> None:
    answer = wire.create(model=upstream.model([Refuse(400)]), input="Hi", store=False)
    assert answer.status == 400
    assert "upstream says 400" in answer.error["message"]
    told = tell(wire, upstream.model([text("Once "), CUT]), store=False)
    assert told[-1]["response"]["incomplete_details"]["reason"] == "interrupted"


def test_the_helper_raises_on_a_failed_stream(client: OpenAI, upstream: FakeUpstream) -> None:
    with client.responses.stream(model=upstream.model([Refuse(400)]), input="Hi") as stream:
        seen = [event.type for event in stream]
        with pytest.raises(RuntimeError):
            stream.get_final_response()
    assert seen[-1] == "response.failed"


def test_html_instead_of_an_answer_is_a_fault(client: OpenAI, upstream: FakeUpstream) -> None:
    page = Refuse(200, "<html>It works!</html>", content_type="text/html")
    with pytest.raises(APIStatusError) as refused:
        client.responses.create(model=upstream.model([page]), input="Hi")
    assert refused.value.status_code == 502
