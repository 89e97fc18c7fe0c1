"""kill -9 of a server whose upstream, another Outlive, continues its runs: no second upstream call is made.

`front` is the server that is killed, `back` its upstream."""

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

PIECES = words(40)

# Around every transaction of a run, from the one that stores the upstream's id to the one that ends it.
FAILPOINTS = [
    "before-upstream-noted",
    "before-commit-of-save-checkpoint",
    "after-commit-of-save-checkpoint",
    "before-commit-of-append:2",
    "after-commit-of-append:5",
    "before-commit-of-close",
    "after-commit-of-close",
]

MakeFront = Callable[..., OutliveServer]


@pytest.fixture
def make_front(tmp_path: Path) -> Iterator[MakeFront]:
    """Makes servers whose runs continue at the upstream with that URL."""
    with ExitStack() as stack:

        def make(url: str, *flags: str) -> OutliveServer:
            config = tmp_path / "front.toml"
            config.write_text(f'[upstreams.back]\nurl = "{url}"\ndialect = "responses"\nreattach = true\n')
            server = OutliveServer(tmp_path / "front", None, "--config", str(config), *flags)
            stack.callback(server.kill)
            return server

        yield make


@pytest.fixture(scope="module")
def back(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutliveServer]:
    """The upstream server, which is not killed."""
    with OutliveServer(tmp_path_factory.mktemp("back"), upstream.url) as running:
        yield running


def wait_deleted(back: OutliveServer) -> None:
    """Wait until no response is stored at the upstream."""
    client = back.client
    wait_until(lambda: client.list_responses() == [], "the upstream's copies are deleted")


@pytest.mark.parametrize("point", FAILPOINTS)
def test_a_killed_server_reattaches_to_its_upstream_run(
    point: str, upstream: FakeUpstream, back: OutliveServer, make_front: MakeFront
) -> None:
    front = make_front(back.base_url).start(OUTLIVE_KILL_AT=point)
    client = front.client
    model = upstream.model(stream_words(PIECES, pause=0.003))
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
    (listed,) = client.list_responses(f"?conversation={conversation}")
    body = check_ended(client, listed["id"], seen)
    assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))
    assert len(body["output"]) == 1
    assert body["usage"]["output_tokens"] == len(PIECES)
    assert len(upstream.calls(model)) == 1, "there was a second upstream call"
    check_conversation(client, conversation, [body])
    if point == "after-commit-of-close":  # killed before it could request that
        (left,) = HttpClient(back.port).get("/v1/responses").json()["data"]
        HttpClient(back.port).delete(f"/v1/responses/{left['id']}")
    wait_deleted(back)


def test_reasoning_text_and_calls_are_all_reattached_to(
    upstream: FakeUpstream, back: OutliveServer, make_front: MakeFront
) -> None:
    """Each is killed in its middle; only a run that continues at the upstream makes all of them recoverable."""
    front = make_front(back.base_url).start()
    client = front.client
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
        time.sleep(0.05)  # the output before the gate is on its way
        front.restart()
        gate.open()
    body = check_ended(client, response_id)
    assert body["status"] == "completed"
    thought, message, called = body["output"]
    assert thought["content"][0]["text"] == "Let me think."
    assert message["content"][0]["text"] == "It is sunny."
    assert called["arguments"] == '{"city": "Paris"}'
    assert len(upstream.calls(model)) == 1
    wait_deleted(back)


def test_repeated_kills_make_no_second_upstream_call(
    upstream: FakeUpstream, back: OutliveServer, make_front: MakeFront
) -> None:
    front = make_front(back.base_url).start()
    client = front.client
    models = [upstream.model(stream_words(words(60, f"{n}-"), pause=0.04)) for n in range(4)]
    ids = [client.submit(model) for model in models]
    choose = random.Random(7)
    for _ in range(2):
        time.sleep(choose.uniform(0.2, 0.6))
        front.restart()
    for n, (response_id, model) in enumerate(zip(ids, models, strict=True)):
        body = check_ended(client, response_id)
        assert (body["status"], text_of(body)) == ("completed", "".join(words(60, f"{n}-")))
        assert len(upstream.calls(model)) == 1
    wait_deleted(back)


def test_a_run_survives_a_restart_of_its_upstream(
    upstream: FakeUpstream, tmp_path: Path, make_front: MakeFront
) -> None:
    """The upstream recovers its run by its own rules, and the server in front reattaches to it."""
    gate = Gate()
    with OutliveServer(tmp_path / "back", upstream.url) as back:
        front = make_front(back.base_url).start()
        client = front.client
        model = upstream.model([gate], [text("Hello"), text(" there"), *ending()])
        response_id = client.submit(model)
        gate.wait_reached()
        back.restart()
        gate.open()
        body = check_ended(client, response_id)
        assert (body["status"], text_of(body)) == ("completed", "Hello there")
        wait_deleted(back)


def test_a_cancel_reaches_the_upstream_run(upstream: FakeUpstream, back: OutliveServer, make_front: MakeFront) -> None:
    front = make_front(back.base_url).start()
    client = front.client
    gate = Gate()
    model = upstream.model([text("Once "), gate])
    with client.stream(model) as stream:
        stream.read_delta("Once ")
        cancelled = client.cancel(stream.id)
    assert (cancelled.status, cancelled.json()["status"]) == (200, "cancelled")
    upstream.wait_call(model).wait_disconnected()
    wait_deleted(back)


def test_a_cancel_after_a_kill_reaches_the_upstream_run(
    upstream: FakeUpstream, back: OutliveServer, make_front: MakeFront
) -> None:
    front = make_front(back.base_url).start()
    client = front.client
    gate = Gate()
    model = upstream.model([text("Once "), gate])
    with client.stream(model) as stream:
        stream.read_delta("Once ")
    front.restart()
    assert client.cancel(stream.id).json()["status"] == "cancelled"
    upstream.wait_call(model).wait_disconnected()
    wait_deleted(back)


def test_a_shutdown_leaves_the_run_to_the_upstream(
    upstream: FakeUpstream, back: OutliveServer, make_front: MakeFront
) -> None:
    # It must not wait for its grace period, which is longer than `terminate` waits for the exit.
    front = make_front(back.base_url, "--grace-seconds", "60").start()
    client = front.client
    gate = Gate()
    model = upstream.model([*map(text, PIECES[:5]), gate, *map(text, PIECES[5:]), *ending()])
    with client.stream(model) as stream:
        stream.read_delta(PIECES[4])
        assert front.terminate() == 0
    gate.open()
    front.start()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))
    assert len(upstream.calls(model)) == 1
    wait_deleted(back)


def test_an_unstored_response_is_not_stored_at_the_upstream(
    upstream: FakeUpstream, back: OutliveServer, make_front: MakeFront
) -> None:
    front = make_front(back.base_url).start()
    client = front.client
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("more"), *ending()])
    with client.stream(model, store=False) as stream:
        stream.read_delta("Once ")
        assert HttpClient(back.port).get("/v1/responses").json()["data"] == []
        gate.open()
        stream.read_all()
    assert text_of(stream.events[-1]["response"]) == "Once more"


@pytest.mark.parametrize(
    "point", ["after-commit-of-save-checkpoint", "after-commit-of-append:3", "before-commit-of-close"]
)
def test_a_killed_server_reattaches_to_any_upstream_with_background_runs(point: str, make_front: MakeFront) -> None:
    with ResponsesUpstream() as remote:
        front = make_front(remote.url).start(OUTLIVE_KILL_AT=point)
        client = front.client
        script: list[Step] = [step for frame in say(*PIECES) for step in (frame, Pause(0.003))]
        model = remote.model(script)
        with client.stream(model) as stream:
            stream.read_all()
        assert front.wait_exit() == -9
        front.start()
        body = check_ended(client, stream.id, stream.frames)
        assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))
        assert len(remote.calls(model)) == 1
        assert len(remote.wait_deleted()) == 1
        assert remote.refusals == []


def test_a_cut_upstream_connection_is_resumed_after_its_last_event(make_front: MakeFront) -> None:
    """Without a crash: the stream is resumed after the last event that was read, and clients see no difference."""
    gate = Gate()
    with ResponsesUpstream() as remote:
        front = make_front(remote.url).start()
        client = front.client
        frames = say(*PIECES)
        cut: list[Step] = [*frames[:12], gate, CUT, *frames[12:]]
        model = remote.model(cut)
        with client.stream(model) as stream:
            stream.read_delta(PIECES[7])
            gate.open()
            stream.read_all()
        body = check_ended(client, stream.id, stream.frames)
        assert (body["status"], text_of(body)) == ("completed", "".join(PIECES))
        assert "outlive" not in body
        ((_, after),) = remote.followed
        assert after == 11
        assert len(remote.calls(model)) == 1
