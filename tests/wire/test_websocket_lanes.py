"""Lanes of a WebSocket: order within each, several at once, and the limits of one connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outlive.core.grammar import TERMINAL_EVENTS
from outlive.http.websocket import MAX_NAMED, MAX_RUNNING, MAX_WAITING
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, Script, ending, say, text
from tests.wire import events
from tests.wire.raw import Json, Wire
from tests.wire.sockets import Talk, check_error, talk, text_of


@pytest.fixture
def socket(server: OutliveServer) -> Iterator[Talk]:
    with talk(server.port) as opened:
        yield opened


def echo(body: Json) -> Script:
    return [*(text(word + " ") for word in body["messages"][-1]["content"].split()), *ending()]


def collect(socket: Talk, ends: int) -> dict[str | None, list[Json]]:
    """Frames by lane, until so many turns have ended."""
    lanes: dict[str | None, list[Json]] = {}
    while ends:
        frame = socket.frame()
        lanes.setdefault(frame.pop("stream_id", None), []).append(frame)
        ends -= frame["type"] in TERMINAL_EVENTS
    return lanes


def test_every_frame_of_a_named_lane_bears_its_name_and_nothing_else_new(
    socket: Talk, wire: Wire, upstream: FakeUpstream
) -> None:
    frames = socket.turn(model=upstream.model(), input="Hi", stream_id="a.b-c_9")
    assert {frame.pop("stream_id") for frame in frames} == {"a.b-c_9"}
    events.check(frames)
    journal = events.split(wire.follow(frames[0]["response"]["id"]).rest())
    payloads = [frame.split(b"data: ")[1].strip().decode() for frame in journal]
    assert [text.replace(',"stream_id":"a.b-c_9"}', "}") for text in socket.texts] == payloads


def test_lanes_run_at_the_same_time(socket: Talk, upstream: FakeUpstream) -> None:
    gates = {name: Gate() for name in ("a", "b", None)}
    for name, gate in gates.items():
        socket.create(
            model=upstream.model([gate, *say(f"lane {name}")]),
            input="Hi",
            **({"stream_id": name} if name is not None else {}),
        )
    for gate in gates.values():
        gate.wait_reached()  # all of them are there before any goes on
    for gate in reversed(gates.values()):
        gate.open()
    lanes = collect(socket, 3)
    for name, frames in lanes.items():
        events.check(frames)
        assert events.text_of(frames) == f"lane {name}"
    assert set(lanes) == {"a", "b", None}


def test_a_lane_takes_one_turn_at_a_time_in_order(socket: Talk, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("first")], say("second"))
    socket.create(model=model, input="1", stream_id="a", store=False)
    socket.create(model=model, input="2", stream_id="a", store=False)
    gate.wait_reached()
    # Others go on meanwhile.
    other = socket.turn(model=upstream.model(), input="Hi", stream_id="b")
    assert len(upstream.calls(model)) == 1
    gate.open()
    ends = [frame for frame in [*other, *socket.rest(), *socket.rest()] if frame["type"] == "response.completed"]
    assert [(end["stream_id"], text_of(end["response"])) for end in ends] == [
        ("b", "Hello there"), ("a", "first"), ("a", "second")
    ]  # fmt: skip


def test_a_turn_may_wait_for_the_one_it_continues(socket: Talk, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("one")], say("two"))
    socket.create(model=model, input="1", stream_id="a", store=False)
    first = socket.frame()["response"]["id"]
    socket.create(model=model, input="2", stream_id="a", store=False, previous_response_id=first)
    gate.open()
    socket.rest()
    assert text_of(socket.rest()[-1]["response"]) == "two"
    assert [message["content"] for message in upstream.calls(model)[-1].messages] == ["1", "one", "2"]


def test_a_lane_may_fork_from_another_and_both_go_on(socket: Talk, upstream: FakeUpstream) -> None:
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
        told = [message["content"] for message in upstream.calls(asked)[-1].messages]
        assert told == ["plan", "plan ", question]


def test_a_fork_that_fails_keeps_its_parent_for_the_lane_it_came_from(socket: Talk, upstream: FakeUpstream) -> None:
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
def test_a_lane_needs_a_proper_name(socket: Talk, upstream: FakeUpstream, name: object) -> None:
    (frame,) = socket.turn(model="m", input="Hi", stream_id=name)
    refused = check_error(frame)
    assert (refused["param"], refused["code"]) == ("stream_id", "invalid_stream_id")
    assert "stream_id" not in frame
    assert socket.answer(model=upstream.model(), input="Hi", stream_id="x" * 256)


def test_so_many_lanes_may_be_named_and_no_more(socket: Talk, upstream: FakeUpstream) -> None:
    model = upstream.model(say("."))
    for number in range(MAX_NAMED):
        socket.create(model=model, input="Hi", stream_id=f"lane-{number}", store=False)
    assert len(collect(socket, MAX_NAMED)) == MAX_NAMED
    (refused,) = socket.turn(model=model, input="Hi", stream_id="one-more")
    assert check_error(refused)["code"] == "websocket_stream_limit_reached"
    assert refused["stream_id"] == "one-more"
    # Those that have a name may go on, and so may the lane without one.
    assert socket.answer(model=model, input="Hi", stream_id="lane-0")
    assert socket.answer(model=model, input="Hi")


def test_so_many_turns_run_at_once_and_the_others_wait(socket: Talk, upstream: FakeUpstream) -> None:
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


def test_so_many_turns_may_wait_and_no_more(socket: Talk, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, HANG])
    socket.create(model=model, input="Hi", store=False)
    gate.wait_reached()
    for _ in range(MAX_WAITING + 1):
        socket.create(model=model, input="Hi", store=False)
    refused = check_error(socket.until("error")[-1])
    assert (refused["status"], refused["code"]) == (429, "rate_limit_exceeded")
    assert refused["headers"] == {"retry-after": "1"}
