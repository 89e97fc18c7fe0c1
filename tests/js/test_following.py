"""outlive.js in Node: a stream of 200 events is cut at every point, delayed, refused, and killed with its server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.client.test_cuts import EVENTS, SCRIPT, cut_at, replay
from tests.support.javascript import JavaScript, JavaScriptError
from tests.support.proxy import Cut, Delay, DiscardAnswer, DropAnswer, Fault, Proxy, RefuseConnection
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Gate, ending, say, text

Json = dict[str, Any]

STREAM = """
    const outlive = new library.Outlive({ baseURL, retry: { first: 5, longest: 100, ...retry } });
    const [events, states, fold] = [[], [], new library.Fold()];
    const stream = outlive.stream({ model, input: "Hi", ...body }, { onState: (state) => states.push(state) });
    for await (const event of stream) {
      events.push(event);
      fold.add(event);
      if (event.delta) emit({ delta: event.delta, token: stream.token });
    }
    const { id, after, ended, token } = stream;
    return { events, states, id, after, ended, token, response: fold.response, text: fold.text };
"""


def read_all(node: JavaScript, base_url: str, model: str, retry: Json | None = None, **body: Any) -> Json:
    result: Json = node.run(STREAM, baseURL=base_url, model=model, retry=retry or {}, body=body)
    return result


def check_whole(server: OutliveServer, got: Json) -> None:
    events = got["events"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events == replay(server, got["id"])
    assert got["ended"] and got["after"] == len(events) - 1
    assert got["states"][0] == "connecting" and got["states"][-1] == "ended"
    assert got["response"] == events[-1]["response"]


def test_a_stream_cut_at_any_point_equals_the_uninterrupted_stream(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    model = upstream.model(SCRIPT)

    def check(frames: int) -> None:
        cut = cut_at(frames, turn=0)
        with Proxy(server.port, cut) as proxy:
            got = read_all(node, proxy.base_url, model, background=True)
        check_whole(server, got)
        assert len(got["events"]) == EVENTS
        assert got["states"].count("reconnecting") == 1, cut

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(EVENTS)))
    assert len(upstream.calls(model)) == EVENTS


def test_a_stream_cut_repeatedly_is_delivered_whole(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    faults: list[Fault] = [
        Cut(7, 1, "close"),
        DropAnswer(),
        Cut(5, 40, "clean"),
        RefuseConnection(),
        Cut(0),
        Cut(31, 0),
        Delay(0.05),
    ]
    with Proxy(server.port, *faults) as proxy:
        got = read_all(node, proxy.base_url, upstream.model(SCRIPT))
    check_whole(server, got)
    assert proxy.accepted >= len(faults)  # Node opens connections ahead, too


@pytest.mark.parametrize("first", [DropAnswer(), RefuseConnection(), Cut(0, 0, "reset"), Cut(0, 5, "clean")])
def test_a_post_with_a_lost_answer_is_repeated_without_a_second_model_call(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream, first: Fault
) -> None:
    model = upstream.model(SCRIPT)
    with Proxy(server.port, first) as proxy:
        check_whole(server, read_all(node, proxy.base_url, model))
    assert len(upstream.calls(model)) == 1


def test_a_silent_connection_is_replaced(node: JavaScript, server: OutliveServer, upstream: FakeUpstream) -> None:
    with Proxy(server.port, DiscardAnswer()) as proxy:
        got = read_all(node, proxy.base_url, upstream.model(SCRIPT), {"silence": 300})
    check_whole(server, got)
    assert got["states"].count("reconnecting") == 1


def test_a_stream_survives_a_killed_and_restarted_server(
    node: JavaScript, killable: OutliveServer, upstream: FakeUpstream
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), text("upon "), gate], say("never"))
    call = node.start(STREAM, baseURL=killable.base_url, model=model, retry={}, body={})
    while call.next_emitted()["delta"] != "upon ":
        pass
    killable.kill()
    starting = threading.Thread(target=killable.start)
    starting.start()
    got = call.result()
    starting.join()
    check_whole(killable, got)
    assert got["response"]["status"] == "incomplete" and got["text"] == "Once upon "


def test_an_unstored_stream_throws_when_its_connection_breaks(
    node: JavaScript, server: OutliveServer, upstream: FakeUpstream
) -> None:
    with Proxy(server.port, Cut(9)) as proxy, pytest.raises(JavaScriptError, match="not stored") as broken:
        read_all(node, proxy.base_url, upstream.model(SCRIPT), store=False)
    assert broken.value.fields["code"] == "connection_lost"


def test_keep_alive_comments_keep_a_quiet_connection(
    node: JavaScript, upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    folder = tmp_path_factory.mktemp("lively")
    with OutliveServer(folder, upstream.url, "--keep-alive-seconds", "0.1") as server:
        call = node.start(STREAM, baseURL=server.base_url, model=model, retry={"silence": 600}, body={})
        call.next_emitted()
        threading.Timer(1.5, gate.open).start()
        got = call.result()
        check_whole(server, got)
    assert "reconnecting" not in got["states"]
