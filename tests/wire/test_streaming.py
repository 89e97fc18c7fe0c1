"""Streams: their framing, replays with the same bytes, and resumption at every event."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from http.client import HTTPResponse

import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI
from openai.types.responses import ResponseTextDeltaEvent

from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import DONE, FakeUpstream, Gate, Pause, Step, ending, finish, say, text, usage
from tests.wire import events
from tests.wire.conftest import Servers

PIECES = ("Once ", "upon ", "a ", "time", ".")


def test_a_stream_has_the_documented_framing(http: HttpClient, upstream: FakeUpstream) -> None:
    with http.stream(model=upstream.model(say(*PIECES)), input="Hi") as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-cache"
        assert "content-encoding" not in stream.headers
        assert stream.headers["x-request-id"].startswith("req_")
        raw = stream.read_rest()
    received = events.read_all(raw)
    assert raw.count(events.DONE) == 1
    assert b"\nid:" not in raw and b"\nretry:" not in raw
    assert received[0]["type"] == "response.created" and received[0]["sequence_number"] == 0
    assert events.types(received) == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * 5,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip


@pytest.mark.parametrize("background", [False, True])
def test_a_replay_is_byte_identical_to_what_was_streamed(
    http: HttpClient, upstream: FakeUpstream, background: bool
) -> None:
    with http.stream(model=upstream.model(say(*PIECES)), input="Hi", background=background) as stream:
        streamed = stream.read_rest()
    response_id = events.read_all(streamed)[0]["response"]["id"]
    for query in ("", "&include_obfuscation=true", "&include[]=message.output_text.logprobs"):
        with http.open_stream("GET", f"/v1/responses/{response_id}?stream=true{query}") as again:
            assert again.read_rest() == streamed


@pytest.mark.parametrize("mode", ["plain", "background"])
def test_a_response_created_without_a_stream_can_be_streamed(
    client: OpenAI, http: HttpClient, upstream: FakeUpstream, mode: str
) -> None:
    made = client.responses.create(model=upstream.model(say(*PIECES)), input="Hi", background=mode == "background")
    with http.follow(made.id) as stream:
        received = events.read_all(stream.read_rest())
    assert events.text_of(received) == "Once upon a time."
    assert received[-1]["response"] == http.get(f"/v1/responses/{made.id}").json()


def test_a_finished_stream_resumes_at_every_cursor(http: HttpClient, upstream: FakeUpstream) -> None:
    with http.stream(model=upstream.model(say(*PIECES)), input="Hi") as stream:
        frames = events.split(stream.read_rest())
    response_id = events.read(frames[0])["response"]["id"]
    for after in range(len(frames)):
        with http.follow(response_id, after) as stream:
            assert stream.read_rest() == b"".join(frames[after + 1 :]) + events.DONE


def test_a_stream_with_sse_ids_has_each_events_number_as_its_id(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon "), text("a "), text("time."), *ending()])
    first = http.stream(model=model, input="Hi")
    response_id = events.read(first.read_through("response.output_text.delta")[0])["response"]["id"]
    with http.open_stream("GET", f"/v1/responses/{response_id}?stream=true&sse_ids=true") as numbered:
        numbered.read_through("response.output_text.delta")
        gate.open()
        raw = b"".join(numbered.frames) + numbered.read_rest()
    frames = http.replay(response_id)
    assert raw == b"".join(b"id: %d\n%b" % (n, frame) for n, frame in enumerate(frames)) + events.DONE


def test_last_event_id_resumes_a_stream_and_wins_over_starting_after(http: HttpClient, upstream: FakeUpstream) -> None:
    response_id = http.create(model=upstream.model(say(*PIECES)), input="Hi").json()["id"]
    frames = http.replay(response_id)
    path = f"/v1/responses/{response_id}?stream=true&sse_ids=true&starting_after=1"
    for last in range(len(frames) - 1):
        with http.open_stream("GET", path, last_event_id=str(last)) as stream:
            numbered = [b"id: %d\n%b" % (n, frame) for n, frame in enumerate(frames)]
            assert stream.read_rest() == b"".join(numbered[last + 1 :]) + events.DONE


def test_the_answer_after_the_terminal_event_is_204_for_an_event_source_alone(
    http: HttpClient, upstream: FakeUpstream
) -> None:
    response_id = http.create(model=upstream.model(say(*PIECES)), input="Hi").json()["id"]
    last = len(http.replay(response_id)) - 1
    path = f"/v1/responses/{response_id}?stream=true"
    for number in (last, last + 1, 2**63):
        answer = http.get(f"{path}&sse_ids=true", last_event_id=str(number))
        assert (answer.status, answer.body) == (204, b"")
    # Without sse_ids the header means nothing, and the stream is the whole one.
    with http.open_stream("GET", path, last_event_id=str(last)) as stream:
        assert events.read_all(stream.read_rest())[0]["sequence_number"] == 0


@pytest.mark.parametrize(
    ("query", "last", "param"),
    [
        ("?sse_ids=true", "1", "sse_ids"),
        ("?stream=true&sse_ids=maybe", "1", "sse_ids"),
        ("?stream=true&sse_ids=true", "-1", "Last-Event-ID"),
        ("?stream=true&sse_ids=true", "one", "Last-Event-ID"),
    ],
)
def test_wrong_values_for_a_stream_with_ids_are_refused_by_name(
    http: HttpClient, upstream: FakeUpstream, query: str, last: str, param: str
) -> None:
    response_id = http.create(model=upstream.model(), input="Hi").json()["id"]
    answer = http.get(f"/v1/responses/{response_id}{query}", last_event_id=last)
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize("after", [10_000, 2**63, 10**30])
def test_a_cursor_past_the_end_returns_only_done(http: HttpClient, upstream: FakeUpstream, after: int) -> None:
    made = http.create(model=upstream.model(), input="Hi").json()
    with http.follow(made["id"], after) as stream:
        assert stream.read_rest() == events.DONE


def test_a_running_stream_resumes_at_every_cursor_and_continues_live(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), text("upon "), gate, text("a "), text("time."), *ending()])
    first = http.stream(model=model, input="Hi")
    seen = first.read_through("response.output_text.delta") + first.read_through("response.output_text.delta")
    response_id = events.read(seen[0])["response"]["id"]
    resumed = [http.follow(response_id, after) for after in range(len(seen))]
    for after, stream in enumerate(resumed):
        for frame in seen[after + 1 :]:
            assert stream.read_frame() == frame
    gate.open()
    whole = b"".join(seen) + first.read_rest()
    frames = events.split(whole)
    events.read_all(whole)
    for stream in resumed:
        assert stream.read_rest() == b"".join(frames[len(seen) :]) + events.DONE


def test_a_late_follower_gets_every_event_from_the_first(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    first = http.stream(model=model, input="Hi")
    response_id = events.read(first.read_through("response.output_text.delta")[0])["response"]["id"]
    second = http.follow(response_id)
    second.read_through("response.output_text.delta")
    gate.open()
    first.read_rest()
    second.read_rest()
    with http.follow(response_id) as third:
        assert events.text_of(events.read_all(third.read_rest())) == "Once upon."


def test_get_shows_the_partial_output_of_a_running_response(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), text("upon "), gate, text("a time."), *ending()])
    stream = http.stream(model=model, input="Hi")
    frames = stream.read_through("response.output_text.delta") + stream.read_through("response.output_text.delta")
    answer = http.get(f"/v1/responses/{events.read(frames[0])['response']['id']}")
    shown = answer.json()
    events.check_response(shown)
    assert shown["status"] == "in_progress"
    assert shown["output"][0]["status"] == "in_progress"
    assert shown["output"][0]["content"][0]["text"] == "Once upon "
    assert int(answer.headers["openai-poll-after-ms"]) > 0
    gate.open()
    assert events.read(events.split(stream.read_rest())[-1])["type"] == "response.completed"


def test_the_strict_helper_accumulates_the_final_response(client: OpenAI, upstream: FakeUpstream) -> None:
    with client.responses.stream(model=upstream.model(say(*PIECES)), input="Hi") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == "Once upon a time."
    assert final.usage is not None and final.usage.output_tokens == 2


def test_the_strict_helper_accepts_a_background_stream(client: OpenAI, upstream: FakeUpstream) -> None:
    with client.responses.stream(model=upstream.model(say(*PIECES)), input="Hi", background=True) as stream:
        seen = [event.type for event in stream]
        assert stream.get_final_response().output_text == "Once upon a time."
    assert seen[:3] == ["response.created", "response.queued", "response.in_progress"]


def test_the_strict_helper_works_async(server: OutliveServer, upstream: FakeUpstream) -> None:
    model = upstream.model(say(*PIECES))

    async def run() -> str:
        async with (
            AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client,
            client.responses.stream(model=model, input="Hi") as stream,
        ):
            return (await stream.get_final_response()).output_text

    assert asyncio.run(run()) == "Once upon a time."


@pytest.mark.parametrize("after", [0, 2, 4, 8])
def test_the_helper_resumes_a_response_by_its_id(client: OpenAI, upstream: FakeUpstream, after: int) -> None:
    made = client.responses.create(model=upstream.model(say(*PIECES)), input="Hi", background=True)
    with client.responses.stream(response_id=made.id, starting_after=after) as stream:
        seen = [event.sequence_number for event in stream]
        final = stream.get_final_response()
    assert seen == list(range(after + 1, seen[-1] + 1))
    assert final.id == made.id and final.output_text == "Once upon a time."


@pytest.mark.parametrize("after", [0, 3, 5])
def test_retrieve_resumes_a_stream_after_a_number(client: OpenAI, upstream: FakeUpstream, after: int) -> None:
    stream = client.responses.create(model=upstream.model(say(*PIECES)), input="Hi", stream=True)
    whole = [event.to_dict() for event in stream]
    response_id = whole[0]["response"]["id"]  # type: ignore[index]
    resumed = client.responses.retrieve(response_id, stream=True, starting_after=after)
    assert [event.to_dict() for event in resumed] == whole[after + 1 :]


def test_a_cut_client_resumes_without_losses_or_repeats(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), text("upon "), gate, text("a "), text("time."), *ending()])

    async def run() -> tuple[str, list[int]]:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            said, numbers, response_id = "", [], ""
            stream = await client.responses.create(model=model, input="Hi", stream=True)
            async for event in stream:
                numbers.append(event.sequence_number)
                if event.type == "response.created":
                    response_id = event.response.id
                if isinstance(event, ResponseTextDeltaEvent):
                    said += event.delta
                    break
            await stream.close()
            gate.open()
            resumed = await client.responses.retrieve(response_id, stream=True, starting_after=numbers[-1])
            async for event in resumed:
                numbers.append(event.sequence_number)
                if isinstance(event, ResponseTextDeltaEvent):
                    said += event.delta
            return said, numbers

    said, numbers = asyncio.run(run())
    assert said == "Once upon a time."
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("query", ["starting_after=3", "stream=true&starting_after=-1", "stream=true&starting_after=x"])
def test_an_invalid_cursor_is_refused(http: HttpClient, upstream: FakeUpstream, query: str) -> None:
    made = http.create(model=upstream.model(), input="Hi").json()
    answer = http.get(f"/v1/responses/{made['id']}?{query}")
    assert answer.status == 400
    assert answer.error["param"] == "starting_after"


def test_an_unknown_response_cannot_be_followed(client: OpenAI) -> None:
    with pytest.raises(NotFoundError):
        client.responses.retrieve("resp_unknown", stream=True)


def test_a_large_answer_replays_in_pages(http: HttpClient, upstream: FakeUpstream) -> None:
    pieces = [f"{n:04d} " + "x" * 200 for n in range(800)]
    with http.stream(model=upstream.model(say(*pieces)), input="Hi") as stream:
        streamed = stream.read_rest()
    received = events.read_all(streamed)
    assert events.text_of(received) == "".join(pieces)
    with http.follow(received[0]["response"]["id"]) as again:
        assert again.read_rest() == streamed
    with http.follow(received[0]["response"]["id"], 700) as again:
        assert again.read_rest() == b"".join(events.split(streamed)[701:]) + events.DONE


def test_any_text_is_streamed_unchanged(http: HttpClient, upstream: FakeUpstream) -> None:
    pieces = ("\u0000", "\n\nevent: x\ndata: y\n\n", '"\\', "\u2028\u2029", "🦦", "é", "\r\n", "\u007f", "</script>")
    with http.stream(model=upstream.model(say(*pieces)), input="🦦\u0000") as stream:
        streamed = stream.read_rest()
    received = events.read_all(streamed)
    assert events.text_of(received) == "".join(pieces)
    response_id = received[0]["response"]["id"]
    shown = http.get(f"/v1/responses/{response_id}").json()
    assert shown["output"][0]["content"][0]["text"] == "".join(pieces)
    assert http.get(f"/v1/responses/{response_id}/input_items").json()["data"][0]["content"][0]["text"] == "🦦\u0000"
    with http.follow(response_id) as again:
        assert again.read_rest() == streamed


def test_an_idle_stream_gets_comments_that_the_sdk_ignores(servers: Servers, upstream: FakeUpstream) -> None:
    quick = servers("--keep-alive-seconds", "0.2")
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    with HttpClient(quick.port) as http, OpenAI(base_url=quick.base_url, api_key="any", max_retries=0) as client:
        stream = http.stream(model=model, input="Hi")
        response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
        follower = client.responses.retrieve(response_id, stream=True)
        for _ in range(3):
            assert stream.read_frame().startswith(b":")
        gate.open()
        raw = stream.read_rest()
        assert "".join(event.delta for event in follower if event.type == "response.output_text.delta") == "Once upon."
        with http.follow(response_id) as again:
            assert b"\n:" not in again.read_rest()  # comments are not journaled
        assert b"\nid:" not in raw and b"\nretry:" not in raw


def test_a_queued_stream_gets_comments(servers: Servers, upstream: FakeUpstream) -> None:
    quick = servers("--keep-alive-seconds", "0.2")
    gate = Gate()
    with HttpClient(quick.port) as http:
        stream = http.stream(model=upstream.model([gate, *say("Hi.")]), input="Hi")
        stream.read_through("response.in_progress")
        assert stream.read_frame().startswith(b":")
        gate.open()
        stream.read_through("response.completed")


def test_tokens_are_delivered_as_they_arrive(http: HttpClient, upstream: FakeUpstream) -> None:
    gates = [Gate() for _ in range(5)]
    steps = [step for gate, piece in zip(gates, PIECES, strict=True) for step in (gate, text(piece))]
    stream = http.stream(model=upstream.model([*steps, *ending()]), input="Hi")
    for gate, piece in zip(gates, PIECES, strict=True):
        gate.open()
        assert events.read(stream.read_through("response.output_text.delta")[-1])["delta"] == piece
    assert stream.read_rest().endswith(events.DONE)


def test_the_end_waits_for_the_usage_that_comes_after_the_finish(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    stream = http.stream(model=upstream.model([text("Hi."), finish(), gate, usage(11, 3), DONE]), input="Hi")
    stream.read_through("response.output_text.delta")
    gate.open()
    received = [events.read(frame) for frame in stream.read_through("response.completed")]
    assert received[-1]["response"]["usage"]["input_tokens"] == 11


def test_a_turn_created_at_the_terminal_event_sees_the_turn_before(http: HttpClient, upstream: FakeUpstream) -> None:
    """The end is committed before it is sent, so that a client may continue as soon as it has read it."""
    for _ in range(10):
        stream = http.stream(model=upstream.model(say("Four.")), input="2+2?")
        response_id = events.read(stream.read_through("response.completed")[0])["response"]["id"]
        model = upstream.model()
        assert http.create(model=model, input="And?", previous_response_id=response_id).status == 200
        assert len(upstream.calls(model)[0].messages) == 3


def test_many_followers_of_one_response_all_get_everything(http: HttpClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    stream = http.stream(model=upstream.model([text("Once "), gate, text("upon."), *ending()]), input="Hi")
    response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
    followers = [http.follow(response_id) for _ in range(50)]
    gate.open()
    bodies = {follower.read_rest() for follower in followers}
    assert len(bodies) == 1
    assert events.text_of(events.read_all(bodies.pop())) == "Once upon."


def test_a_slow_reader_does_not_slow_the_run(http: HttpClient, upstream: FakeUpstream) -> None:
    """The reader reads nothing until the end of a response larger than all buffers, and then gets all of it."""
    pieces = ["y" * 1000 for _ in range(4000)]
    model = upstream.model(say(*pieces))
    stream = http.stream(model=model, input="Hi")
    first = stream.read_frame()
    response_id = events.read(first)["response"]["id"]
    ended = http.get(f"/v1/responses/{response_id}?wait=20").json()
    assert ended["status"] == "completed"
    assert upstream.calls(model)[0].finished
    assert events.text_of(events.read_all(first + stream.read_rest())) == "".join(pieces)


def test_a_reader_that_pauses_gets_every_event_once(http: HttpClient, upstream: FakeUpstream) -> None:
    """With a small receive buffer and reads in parts it is in turn written to directly, paused, and behind."""
    gates = [Gate() for _ in range(2)]
    pieces = [f"{n:03d}" + "y" * 50_000 for n in range(40)]
    steps: list[Step] = []
    for gate in gates:
        for piece in pieces:
            steps += [text(piece), Pause(0.002)]  # else most were read from the journal
        steps.append(gate)
    model = upstream.model([*steps, *ending()])
    body = json.dumps({"model": model, "input": "Hi", "stream": True}).encode()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", http.port))
        slow.sendall(
            b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        answer = HTTPResponse(slow)
        answer.begin()
        got = b""
        for gate in gates:
            gate.wait_reached()
            got += answer.read(1_000_000)
            gate.open()
        got += answer.read()
    received = events.read_all(got)
    assert events.text_of(received) == "".join(pieces) * 2
    with http.follow(received[0]["response"]["id"]) as again:
        assert again.read_rest() == got


def test_a_pause_of_the_upstream_does_not_end_the_response(http: HttpClient, upstream: FakeUpstream) -> None:
    began = time.monotonic()
    model = upstream.model([text("a"), b": comment\n\n", Pause(0.3), text("b"), *ending()])
    assert http.create(model=model, input="Hi").json()["output"][0]["content"][0]["text"] == "ab"
    assert time.monotonic() - began >= 0.3
