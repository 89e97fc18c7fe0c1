"""Lanes of a WebSocket: order within a lane, concurrency between lanes, and the limits of one connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outlive.core.grammar import TERMINAL_EVENTS
from outlive.http.websocket import MAX_NAMED, MAX_RUNNING, MAX_WAITING
from tests.support.http_client import HttpClient, Json
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, Script, ending, say, text
from tests.wire import events
from tests.wire.websocket import WebSocketClient, check_error, open_websocket, text_of


@pytest.fixture
def socket(server: OutliveServer) -> Iterator[WebSocketClient]:
    with open_websocket(server.port) as opened:
        yield opened


def echo(body: Json) -> Script:
    return [*(text(word + " ") for word in body["messages"][-1]["content"].split()), *ending()]


def collect(socket: WebSocketClient, ends: int) -> dict[str | None, list[Json]]:
    """Read frames until so many turns have ended, and return them by lane."""
    lanes: dict[str | None, list[Json]] = {}
    while ends:
        frame = socket.frame()
        lanes.setdefault(frame.pop("stream_id", None), []).append(frame)
        ends -= frame["type"] in TERMINAL_EVENTS
    return lanes


def test_frames_of_a_named_lane_add_only_its_name(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream
) -> None:
    frames = socket.turn(model=upstream.model(), input="Hi", stream_id="a.b-c_9")
    assert {frame.pop("stream_id") for frame in frames} == {"a.b-c_9"}
    events.check(frames)
    journal = events.split(http.follow(frames[0]["response"]["id"]).read_rest())
    payloads = [frame.split(b"data: ")[1].strip().decode() for frame in journal]
    assert [text.replace(',"stream_id":"a.b-c_9"}', "}") for text in socket.texts] == payloads


def test_lanes_run_concurrently(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    gates = {name: Gate() for name in ("a", "b", None)}
    for name, gate in gates.items():
        socket.create(
            model=upstream.model([gate, *say(f"lane {name}")]),
            input="Hi",
            **({"stream_id": name} if name is not None else {}),
        )
    for gate in gates.values():
        gate.wait_reached()  # all turns have started before any continues
    for gate in reversed(gates.values()):
        gate.open()
    lanes = collect(socket, 3)
    for name, frames in lanes.items():
        events.check(frames)
        assert events.text_of(frames) == f"lane {name}"
    assert set(lanes) == {"a", "b", None}


def test_a_lane_runs_one_turn_at_a_time_in_order(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("first")], say("second"))
    socket.create(model=model, input="1", stream_id="a", store=False)
    socket.create(model=model, input="2", stream_id="a", store=False)
    gate.wait_reached()
    # Other lanes continue meanwhile.
    other = socket.turn(model=upstream.model(), input="Hi", stream_id="b")
    assert len(upstream.calls(model)) == 1
    gate.open()
    ends = [frame for frame in [*other, *socket.rest(), *socket.rest()] if frame["type"] == "response.completed"]
    assert [(end["stream_id"], text_of(end["response"])) for end in ends] == [
        ("b", "Hello there"), ("a", "first"), ("a", "second")
    ]  # fmt: skip


def test_a_turn_waits_for_the_one_it_continues(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("one")], say("two"))
    socket.create(model=model, input="1", stream_id="a", store=False)
    first = socket.frame()["response"]["id"]
    socket.create(model=model, input="2", stream_id="a", store=False, previous_response_id=first)
    gate.open()
    socket.rest()
    assert text_of(socket.rest()[-1]["response"]) == "two"
    assert [message["content"] for message in upstream.calls(model)[-1].messages] == ["1", "one", "2"]


def test_a_lane_forks_from_another_and_both_continue(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model(echo)
    plan = socket.answer(model=model, input="plan", stream_id="planner", store=False)["id"]
    gate = Gate()
    critic = upstream.model([gate, *say("gaps")])
    socket.create(model=critic, input="gaps?", stream_id="critic", store=False, previous_response_id=plan)
    gate.wait_reached()
    socket.create(model=model, input="steps?", stream_id="planner", store=False, previous_response_id=plan)
    socket.until("response.completed")
    gate.open()
    socket.until("response.completed")
    for asked, question in ((model, "steps?"), (critic, "gaps?")):
        sent = [message["content"] for message in upstream.calls(asked)[-1].messages]
        assert sent == ["plan", "plan ", question]


def test_a_failed_fork_keeps_its_parent_for_the_original_lane(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model(echo)
    first = socket.answer(model=model, input="1", stream_id="a", store=False)["id"]
    wrong = socket.turn(model=model, input="x", stream_id="b", store=False, temperature=9, previous_response_id=first)
    assert wrong[-1]["stream_id"] == "b" and check_error(wrong[-1])["param"] == "temperature"
    assert socket.answer(model=model, input="2", stream_id="a", store=False, previous_response_id=first)
    wrong = socket.turn(model=model, input="x", stream_id="a", store=False, temperature=9, previous_response_id=first)
    assert check_error(wrong[-1])["param"] == "temperature"
    gone = socket.turn(model=model, input="3", stream_id="a", store=False, previous_response_id=first)
    assert gone[-1]["stream_id"] == "a" and check_error(gone[-1])["code"] == "previous_response_not_found"


@pytest.mark.parametrize("name", ["", "x" * 257, "a b", "ä", "a/b", 5, ["a"], "a\n"])
def test_an_invalid_lane_name_is_refused(socket: WebSocketClient, upstream: FakeUpstream, name: object) -> None:
    (frame,) = socket.turn(model="m", input="Hi", stream_id=name)
    refused = check_error(frame)
    assert (refused["param"], refused["code"]) == ("stream_id", "invalid_stream_id")
    assert "stream_id" not in frame
    assert socket.answer(model=upstream.model(), input="Hi", stream_id="x" * 256)


def test_the_number_of_lanes_is_limited(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model(say("."))
    for number in range(MAX_NAMED):
        socket.create(model=model, input="Hi", stream_id=f"lane-{number}", store=False)
    assert len(collect(socket, MAX_NAMED)) == MAX_NAMED
    (refused,) = socket.turn(model=model, input="Hi", stream_id="one-more")
    assert check_error(refused)["code"] == "websocket_stream_limit_reached"
    assert refused["stream_id"] == "one-more"
    # Known lanes still work, and so does the lane without a name.
    assert socket.answer(model=model, input="Hi", stream_id="lane-0")
    assert socket.answer(model=model, input="Hi")


def test_the_number_of_concurrent_turns_is_limited(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    gates = [Gate() for _ in range(MAX_RUNNING + 4)]
    models = [upstream.model([gate, *say("done")]) for gate in gates]
    for number, model in enumerate(models):
        socket.create(model=model, input="Hi", stream_id=f"{number}", store=False)
    for gate in gates[:MAX_RUNNING]:
        gate.wait_reached()
    assert [len(upstream.calls(model)) for model in models[MAX_RUNNING:]] == [0, 0, 0, 0]
    gates[3].open()
    assert socket.rest()[-1]["stream_id"] == "3"
    gates[MAX_RUNNING].wait_reached()
    for gate in gates:
        gate.open()
    assert len(collect(socket, MAX_RUNNING + 3)) == MAX_RUNNING + 3


def test_the_number_of_queued_turns_is_limited(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, HANG])
    socket.create(model=model, input="Hi", store=False)
    gate.wait_reached()
    for _ in range(MAX_WAITING + 1):
        socket.create(model=model, input="Hi", store=False)
    refused = check_error(socket.until("error")[-1])
    assert (refused["status"], refused["code"]) == (429, "rate_limit_exceeded")
    assert refused["headers"] == {"retry-after": "1"}
