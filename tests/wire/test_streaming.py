"""Streams: how they are framed, that a replay is the same bytes, and that one can come back at every event."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from http.client import HTTPResponse

import pytest
from openai import AsyncOpenAI, NotFoundError, OpenAI
from openai.types.responses import ResponseTextDeltaEvent

from tests.support.server import OutliveServer
from tests.support.upstream import DONE, FakeUpstream, Gate, Pause, Step, ending, finish, say, text, usage
from tests.wire import events
from tests.wire.conftest import Servers
from tests.wire.raw import Wire

PIECES = ("Once ", "upon ", "a ", "time", ".")


def test_a_stream_is_framed_as_the_wire_has_it(wire: Wire, upstream: FakeUpstream) -> None:
    with wire.stream(model=upstream.model(say(*PIECES)), input="Hi") as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert stream.headers["cache-control"] == "no-cache"
        assert "content-encoding" not in stream.headers
        assert stream.headers["x-request-id"].startswith("req_")
        raw = stream.rest()
    told = events.read_all(raw)
    assert raw.count(events.DONE) == 1
    assert b"\nid:" not in raw and b"\nretry:" not in raw
    assert told[0]["type"] == "response.created" and told[0]["sequence_number"] == 0
    assert events.types(told) == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * 5,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip


@pytest.mark.parametrize("background", [False, True])
def test_a_replay_is_byte_identical_to_what_was_streamed(wire: Wire, upstream: FakeUpstream, background: bool) -> None:
    with wire.stream(model=upstream.model(say(*PIECES)), input="Hi", background=background) as stream:
        streamed = stream.rest()
    response_id = events.read_all(streamed)[0]["response"]["id"]
    for query in ("", "&include_obfuscation=true", "&include[]=message.output_text.logprobs"):
        with wire.open("GET", f"/v1/responses/{response_id}?stream=true{query}") as again:
            assert again.rest() == streamed


@pytest.mark.parametrize("mode", ["plain", "background"])
def test_what_was_never_streamed_can_be_streamed_later(
    client: OpenAI, wire: Wire, upstream: FakeUpstream, mode: str
) -> None:
    made = client.responses.create(model=upstream.model(say(*PIECES)), input="Hi", background=mode == "background")
    with wire.follow(made.id) as stream:
        told = events.read_all(stream.rest())
    assert events.text_of(told) == "Once upon a time."
    assert told[-1]["response"] == wire.get(f"/v1/responses/{made.id}").json()


def test_a_finished_stream_resumes_at_every_cursor(wire: Wire, upstream: FakeUpstream) -> None:
    with wire.stream(model=upstream.model(say(*PIECES)), input="Hi") as stream:
        frames = events.split(stream.rest())
    response_id = events.read(frames[0])["response"]["id"]
    for after in range(len(frames)):
        with wire.follow(response_id, after) as stream:
            assert stream.rest() == b"".join(frames[after + 1 :]) + events.DONE


@pytest.mark.parametrize("after", [10_000, 2**63, 10**30])
def test_a_cursor_past_the_end_gives_the_end(wire: Wire, upstream: FakeUpstream, after: int) -> None:
    made = wire.create(model=upstream.model(), input="Hi").json()
    with wire.follow(made["id"], after) as stream:
        assert stream.rest() == events.DONE


def test_a_running_stream_resumes_at_every_cursor_and_goes_on_live(wire: Wire, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), text("upon "), gate, text("a "), text("time."), *ending()])
    first = wire.stream(model=model, input="Hi")
    seen = first.until("response.output_text.delta") + first.until("response.output_text.delta")
    response_id = events.read(seen[0])["response"]["id"]
    resumed = [wire.follow(response_id, after) for after in range(len(seen))]
    for after, stream in enumerate(resumed):
        for frame in seen[after + 1 :]:
            assert stream.frame() == frame
    gate.open()
    whole = b"".join(seen) + first.rest()
    frames = events.split(whole)
    events.read_all(whole)
    for stream in resumed:
        assert stream.rest() == b"".join(frames[len(seen) :]) + events.DONE


def test_a_follower_that_comes_while_it_runs_sees_all_of_it_from_the_start(wire: Wire, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    first = wire.stream(model=model, input="Hi")
    response_id = events.read(first.until("response.output_text.delta")[0])["response"]["id"]
    second = wire.follow(response_id)
    second.until("response.output_text.delta")
    gate.open()
    first.rest()
    second.rest()
    with wire.follow(response_id) as third:
        assert events.text_of(events.read_all(third.rest())) == "Once upon."


def test_get_shows_the_partial_output_of_a_running_response(wire: Wire, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), text("upon "), gate, text("a time."), *ending()])
    stream = wire.stream(model=model, input="Hi")
    frames = stream.until("response.output_text.delta") + stream.until("response.output_text.delta")
    answer = wire.get(f"/v1/responses/{events.read(frames[0])['response']['id']}")
    shown = answer.json()
    events.check_response(shown)
    assert shown["status"] == "in_progress"
    assert shown["output"][0]["status"] == "in_progress"
    assert shown["output"][0]["content"][0]["text"] == "Once upon "
    assert int(answer.headers["openai-poll-after-ms"]) > 0
    gate.open()
    assert events.read(events.split(stream.rest())[-1])["type"] == "response.completed"


def test_the_strict_helper_accumulates_the_final_response(client: OpenAI, upstream: FakeUpstream) -> None:
    with client.responses.stream(model=upstream.model(say(*PIECES)), input="Hi") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == "Once upon a time."
    assert final.usage is not None and final.usage.output_tokens == 2


def test_the_strict_helper_takes_a_background_stream(client: OpenAI, upstream: FakeUpstream) -> None:
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
def test_the_helper_comes_back_to_a_response_by_its_id(client: OpenAI, upstream: FakeUpstream, after: int) -> None:
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


def test_a_client_that_was_cut_off_resumes_without_losing_or_repeating_anything(
    server: OutliveServer, upstream: FakeUpstream
) -> None:
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
def test_a_cursor_that_makes_no_sense_is_refused(wire: Wire, upstream: FakeUpstream, query: str) -> None:
    made = wire.create(model=upstream.model(), input="Hi").json()
    answer = wire.get(f"/v1/responses/{made['id']}?{query}")
    assert answer.status == 400
    assert answer.error["param"] == "starting_after"


def test_an_unknown_response_cannot_be_followed(client: OpenAI) -> None:
    with pytest.raises(NotFoundError):
        client.responses.retrieve("resp_unknown", stream=True)


def test_a_large_answer_replays_in_pages(wire: Wire, upstream: FakeUpstream) -> None:
    pieces = [f"{n:04d} " + "x" * 200 for n in range(800)]
    with wire.stream(model=upstream.model(say(*pieces)), input="Hi") as stream:
        streamed = stream.rest()
    told = events.read_all(streamed)
    assert events.text_of(told) == "".join(pieces)
    with wire.follow(told[0]["response"]["id"]) as again:
        assert again.rest() == streamed
    with wire.follow(told[0]["response"]["id"], 700) as again:
        assert again.rest() == b"".join(events.split(streamed)[701:]) + events.DONE


def test_any_text_survives_the_wire(wire: Wire, upstream: FakeUpstream) -> None:
    pieces = ("\u0000", "\n\nevent: x\ndata: y\n\n", '"\\', "\u2028\u2029", "🦦", "é", "\r\n", "\u007f", "</script>")
    with wire.stream(model=upstream.model(say(*pieces)), input="🦦\u0000") as stream:
        streamed = stream.rest()
    told = events.read_all(streamed)
    assert events.text_of(told) == "".join(pieces)
    response_id = told[0]["response"]["id"]
    shown = wire.get(f"/v1/responses/{response_id}").json()
    assert shown["output"][0]["content"][0]["text"] == "".join(pieces)
    assert wire.get(f"/v1/responses/{response_id}/input_items").json()["data"][0]["content"][0]["text"] == "🦦\u0000"
    with wire.follow(response_id) as again:
        assert again.rest() == streamed


def test_an_idle_stream_gets_comments_and_the_sdk_does_not_mind(servers: Servers, upstream: FakeUpstream) -> None:
    quick = servers("--keep-alive-seconds", "0.2")
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    with Wire(quick.port) as wire, OpenAI(base_url=quick.base_url, api_key="any", max_retries=0) as client:
        stream = wire.stream(model=model, input="Hi")
        response_id = events.read(stream.until("response.output_text.delta")[0])["response"]["id"]
        follower = client.responses.retrieve(response_id, stream=True)
        for _ in range(3):
            assert stream.frame().startswith(b":")
        gate.open()
        raw = stream.rest()
        assert "".join(event.delta for event in follower if event.type == "response.output_text.delta") == "Once upon."
        with wire.follow(response_id) as again:
            assert b"\n:" not in again.rest()  # a comment is no part of the journal
        assert b"\nid:" not in raw and b"\nretry:" not in raw


def test_a_waiting_stream_gets_comments_too(servers: Servers, upstream: FakeUpstream) -> None:
    quick = servers("--keep-alive-seconds", "0.2")
    gate = Gate()
    with Wire(quick.port) as wire:
        stream = wire.stream(model=upstream.model([gate, *say("Hi.")]), input="Hi")
        stream.until("response.in_progress")
        assert stream.frame().startswith(b":")
        gate.open()
        stream.until("response.completed")


def test_tokens_are_delivered_as_they_come_not_at_the_end(wire: Wire, upstream: FakeUpstream) -> None:
    gates = [Gate() for _ in range(5)]
    steps = [step for gate, piece in zip(gates, PIECES, strict=True) for step in (gate, text(piece))]
    stream = wire.stream(model=upstream.model([*steps, *ending()]), input="Hi")
    for gate, piece in zip(gates, PIECES, strict=True):
        gate.open()
        assert events.read(stream.until("response.output_text.delta")[-1])["delta"] == piece
    assert stream.rest().endswith(events.DONE)


def test_the_end_waits_for_the_usage_that_comes_after_the_finish(wire: Wire, upstream: FakeUpstream) -> None:
    gate = Gate()
    stream = wire.stream(model=upstream.model([text("Hi."), finish(), gate, usage(11, 3), DONE]), input="Hi")
    stream.until("response.output_text.delta")
    gate.open()
    told = [events.read(frame) for frame in stream.until("response.completed")]
    assert told[-1]["response"]["usage"]["input_tokens"] == 11


def test_next_turn_right_after_the_terminal_event_sees_the_turn_before(wire: Wire, upstream: FakeUpstream) -> None:
    """Committed before it is sent: whoever has read the last event may go on at once."""
    for _ in range(10):
        stream = wire.stream(model=upstream.model(say("Four.")), input="2+2?")
        response_id = events.read(stream.until("response.completed")[0])["response"]["id"]
        model = upstream.model()
        assert wire.create(model=model, input="And?", previous_response_id=response_id).status == 200
        assert len(upstream.calls(model)[0].messages) == 3


def test_many_followers_of_one_response_all_get_everything(wire: Wire, upstream: FakeUpstream) -> None:
    gate = Gate()
    stream = wire.stream(model=upstream.model([text("Once "), gate, text("upon."), *ending()]), input="Hi")
    response_id = events.read(stream.until("response.output_text.delta")[0])["response"]["id"]
    followers = [wire.follow(response_id) for _ in range(50)]
    gate.open()
    bodies = {follower.rest() for follower in followers}
    assert len(bodies) == 1
    assert events.text_of(events.read_all(bodies.pop())) == "Once upon."


def test_a_slow_reader_does_not_slow_the_run(wire: Wire, upstream: FakeUpstream) -> None:
    """It reads nothing until the response has ended, far more than any buffer holds, and then still gets everything."""
    pieces = ["y" * 1000 for _ in range(6000)]
    model = upstream.model(say(*pieces))
    stream = wire.stream(model=model, input="Hi")
    first = stream.frame()
    response_id = events.read(first)["response"]["id"]
    ended = wire.get(f"/v1/responses/{response_id}?wait=20").json()
    assert ended["status"] == "completed"
    assert upstream.calls(model)[0].over
    assert events.text_of(events.read_all(first + stream.rest())) == "".join(pieces)


def test_a_reader_that_stops_and_goes_gets_every_event_once(wire: Wire, upstream: FakeUpstream) -> None:
    """Its connection holds little, and it reads a part whenever as much again has come: poured, paused, and behind."""
    gates = [Gate() for _ in range(2)]
    pieces = [f"{n:03d}" + "y" * 50_000 for n in range(40)]
    steps: list[Step] = []
    for gate in gates:
        for piece in pieces:
            steps += [text(piece), Pause(0.002)]  # else most of it were read, and not poured
        steps.append(gate)
    model = upstream.model([*steps, *ending()])
    body = json.dumps({"model": model, "input": "Hi", "stream": True}).encode()
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(20)
        slow.connect(("127.0.0.1", wire.port))
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
    told = events.read_all(got)
    assert events.text_of(told) == "".join(pieces) * 2
    with wire.follow(told[0]["response"]["id"]) as again:
        assert again.rest() == got


def test_a_paused_upstream_is_no_end(wire: Wire, upstream: FakeUpstream) -> None:
    began = time.monotonic()
    model = upstream.model([text("a"), b": comment\n\n", Pause(0.3), text("b"), *ending()])
    assert wire.create(model=model, input="Hi").json()["output"][0]["content"][0]["text"] == "ab"
    assert time.monotonic() - began >= 0.3
