"""kill -9 of a server whose runs go on at their upstream: an Outlive in front of an Outlive. One run is paid for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.support.checks import check_conversation, check_ended
from tests.support.http_client import HttpClient, text_of
from tests.support.responses_upstream import ResponsesUpstream, say
from tests.support.scripts import stream_words, words
from tests.support.server import OutliveServer
from tests.support.upstream import CUT, FakeUpstream, Gate, Pause, Step, call, ending, reasoning, text
from tests.support.waiting import wait_until

STORY = words(40)

# Around every transaction of a run, from the one that notes the upstream's id to the one that ends it.
ARMED = [
    "before-upstream-noted",
    "before-commit-of-save-checkpoint",
    "after-commit-of-save-checkpoint",
    "before-commit-of-append:2",
    "after-commit-of-append:5",
    "before-commit-of-close",
    "after-commit-of-close",
]

Serve = Callable[[str], OutliveServer]


@pytest.fixture
def make_front(tmp_path: Path) -> Iterator[Serve]:
    """Makes servers whose runs go on at the upstream with that URL."""
    with ExitStack() as stack:

        def make(url: str) -> OutliveServer:
            config = tmp_path / "front.toml"
            config.write_text(f'[upstreams.back]\nurl = "{url}"\ndialect = "responses"\nreattach = true\n')
            server = OutliveServer(tmp_path / "front", None, "--config", str(config))
            stack.callback(server.kill)
            return server

        yield make


@pytest.fixture(scope="module")
def back(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    """The server behind: an ordinary one, that nobody kills."""
    with OutliveServer(tmp_path_factory.mktemp("back"), upstream.url) as running:
        yield running


def wait_gone(back: OutliveServer) -> None:
    """Nothing of what was asked there is kept there."""
    client = HttpClient(back.port)
    wait_until(lambda: client.get("/v1/responses").json()["data"] == [], "the copies are gone")


@pytest.mark.parametrize("point", ARMED)
def test_a_run_is_taken_up_after_a_kill_at(
    point: str, upstream: FakeUpstream, back: OutliveServer, make_front: Serve
) -> None:
    front = make_front(back.base_url).start(OUTLIVE_KILL_AT=point)
    client = HttpClient(front.port)
    model = upstream.model(stream_words(STORY, pause=0.003))
    conversation = client.create_conversation()
    seen: list[bytes] = []
    try:
        with client.stream(model, conversation=conversation) as stream:
            stream.read_all()
            assert stream.cut or stream.done
            seen = stream.frames
    except (OSError, HTTPException):
        pass
    assert front.wait_exit() == -9

    front.start()
    (listed,) = client.get(f"/v1/responses?conversation={conversation}").json()["data"]
    body = check_ended(client, listed["id"], seen)
    assert (body["status"], text_of(body)) == ("completed", "".join(STORY))
    assert len(body["output"]) == 1
    assert body["usage"]["output_tokens"] == len(STORY)
    assert len(upstream.calls(model)) == 1, "it was paid for more than once"
    check_conversation(client, conversation, [body])
    if point == "after-commit-of-close":  # nobody was left to ask for it
        (left,) = HttpClient(back.port).get("/v1/responses").json()["data"]
        HttpClient(back.port).delete(f"/v1/responses/{left['id']}")
    wait_gone(back)


def test_whatever_an_answer_is_made_of_is_taken_up(
    upstream: FakeUpstream, back: OutliveServer, make_front: Serve
) -> None:
    """Reasoning, text and calls, each killed in its middle: without a run that lasts, none of them could go on."""
    front = make_front(back.base_url).start()
    client = HttpClient(front.port)
    gates = [Gate(), Gate(), Gate()]
    script: list[Step] = [
        reasoning("Let me "), gates[0], reasoning("think."), text("It is "), gates[1], text("sunny."),
        call(0, '{"city": "Pa', id="call_1", name="weather"), gates[2], call(0, 'ris"}'), *ending("tool_calls"),
    ]  # fmt: skip
    model = upstream.model(script)
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
    response_id = client.submit(model, tools=[tool])
    for gate in gates:
        gate.wait_reached()
        time.sleep(0.05)  # what was said before it is on its way
        front.restart()
        gate.open()
    body = check_ended(client, response_id)
    assert body["status"] == "completed"
    thought, said, called = body["output"]
    assert thought["content"][0]["text"] == "Let me think."
    assert said["content"][0]["text"] == "It is sunny."
    assert called["arguments"] == '{"city": "Paris"}'
    assert len(upstream.calls(model)) == 1
    wait_gone(back)


def test_a_front_that_is_killed_again_and_again_still_pays_once(
    upstream: FakeUpstream, back: OutliveServer, make_front: Serve
) -> None:
    front = make_front(back.base_url).start()
    client = HttpClient(front.port)
    models = [upstream.model(stream_words(words(60, f"{n}-"), pause=0.04)) for n in range(4)]
    ids = [client.submit(model) for model in models]
    chance = random.Random(7)
    for _ in range(2):
        time.sleep(chance.uniform(0.2, 0.6))
        front.restart()
    for n, (response_id, model) in enumerate(zip(ids, models, strict=True)):
        body = check_ended(client, response_id)
        assert (body["status"], text_of(body)) == ("completed", "".join(words(60, f"{n}-")))
        assert len(upstream.calls(model)) == 1
    wait_gone(back)


def test_a_back_that_is_killed_is_waited_for(upstream: FakeUpstream, tmp_path: Path, make_front: Serve) -> None:
    """Both may fall: the back takes its run up by its own rules, and the front takes up the back's."""
    gate = Gate()
    behind = OutliveServer(tmp_path / "behind", upstream.url)
    with behind:
        front = make_front(behind.base_url).start()
        client = HttpClient(front.port)
        model = upstream.model([gate], say_chat("Hello", " there"))
        response_id = client.submit(model)
        gate.wait_reached()
        behind.restart()
        gate.open()
        body = check_ended(client, response_id)
        assert (body["status"], text_of(body)) == ("completed", "Hello there")
        wait_gone(behind)


def say_chat(*pieces: str) -> list[Step]:
    return [*map(text, pieces), *ending()]


def test_a_cancel_reaches_the_back(upstream: FakeUpstream, back: OutliveServer, make_front: Serve) -> None:
    front = make_front(back.base_url).start()
    client = HttpClient(front.port)
    gate = Gate()
    model = upstream.model([text("Once "), gate])
    with client.stream(model) as stream:
        stream.read_until(lambda event: event.get("delta") == "Once ")
        cancelled = client.post(f"/v1/responses/{stream.id}/cancel")
    assert (cancelled.status, cancelled.json()["status"]) == (200, "cancelled")
    upstream.wait_call(model).wait_disconnected()
    wait_gone(back)


def test_a_cancel_after_a_kill_reaches_the_back(upstream: FakeUpstream, back: OutliveServer, make_front: Serve) -> None:
    front = make_front(back.base_url).start()
    client = HttpClient(front.port)
    gate = Gate()
    model = upstream.model([text("Once "), gate])
    with client.stream(model) as stream:
        stream.read_until(lambda event: event.get("delta") == "Once ")
    front.restart()
    assert client.post(f"/v1/responses/{stream.id}/cancel").json()["status"] == "cancelled"
    upstream.wait_call(model).wait_disconnected()
    wait_gone(back)


def test_a_front_that_is_told_to_stop_leaves_the_run_to_the_back(
    upstream: FakeUpstream, back: OutliveServer, make_front: Serve
) -> None:
    front = make_front(back.base_url).start()
    client = HttpClient(front.port)
    gate = Gate()
    model = upstream.model([*map(text, STORY[:5]), gate, *map(text, STORY[5:]), *ending()])
    with client.stream(model) as stream:
        stream.read_until(lambda event: event.get("delta") == STORY[4])
        began = time.monotonic()
        assert front.terminate() == 0
        assert time.monotonic() - began < 10, "it waited for a run that needs nobody"
    gate.open()
    front.start()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join(STORY))
    assert len(upstream.calls(model)) == 1
    wait_gone(back)


def test_store_false_is_not_left_at_the_back(upstream: FakeUpstream, back: OutliveServer, make_front: Serve) -> None:
    front = make_front(back.base_url).start()
    client = HttpClient(front.port)
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("more"), *ending()])
    with client.stream(model, store=False) as stream:
        stream.read_until(lambda event: event.get("delta") == "Once ")
        assert HttpClient(back.port).get("/v1/responses").json()["data"] == []
        gate.open()
        stream.read_all()
    assert text_of(stream.events[-1]["response"]) == "Once more"


@pytest.mark.parametrize(
    "point", ["after-commit-of-save-checkpoint", "after-commit-of-append:3", "before-commit-of-close"]
)
def test_the_same_holds_in_front_of_any_server_with_a_background(point: str, make_front: Serve) -> None:
    with ResponsesUpstream() as there:
        front = make_front(there.url).start(OUTLIVE_KILL_AT=point)
        client = HttpClient(front.port)
        script: list[Step] = [step for frame in say(*STORY) for step in (frame, Pause(0.003))]
        model = there.model(script)
        with client.stream(model) as stream:
            stream.read_all()
        assert front.wait_exit() == -9
        front.start()
        body = check_ended(client, stream.id, stream.frames)
        assert (body["status"], text_of(body)) == ("completed", "".join(STORY))
        assert len(there.calls(model)) == 1
        assert len(there.wait_deleted()) == 1
        assert there.refusals == []


def test_a_connection_that_is_cut_is_taken_up_where_it_was(make_front: Serve) -> None:
    """Without a crash of ours: the upstream goes on after the last number that was read, and nobody notices."""
    gate = Gate()
    with ResponsesUpstream() as there:
        front = make_front(there.url).start()
        client = HttpClient(front.port)
        frames = say(*STORY)
        cut: list[Step] = [*frames[:12], gate, CUT, *frames[12:]]
        model = there.model(cut)
        with client.stream(model) as stream:
            stream.read_until(lambda event: event.get("delta") == STORY[7])
            gate.open()
            stream.read_all()
        body = check_ended(client, stream.id, stream.frames)
        assert (body["status"], text_of(body)) == ("completed", "".join(STORY))
        assert "outlive" not in body
        ((_, after),) = there.followed
        assert after == 11
        assert len(there.calls(model)) == 1
