"""The timeline of a response names its nodes, times and milestones, also after a kill, its end, and packing."""

from __future__ import annotations

import time

import pytest

from outlive.core.events import Json
from tests.crash.conftest import MakeServer
from tests.support.http_client import HttpClient
from tests.support.scripts import stream_words, words
from tests.support.upstream import HANG, FakeUpstream, Gate, call, ending, reasoning, text
from tests.support.waiting import wait_until

PIECES = words(30)


def get_timeline(client: HttpClient, response_id: str) -> Json:
    answer = client.get(f"/v1/responses/{response_id}/timeline")
    assert answer.status == 200, answer
    timeline: Json = answer.json()
    times = [entry["at"] for entry in timeline["entries"]]
    assert times == sorted(times)
    return timeline


def types_of(timeline: Json) -> list[str]:
    return [entry["type"] for entry in timeline["entries"]]


@pytest.mark.parametrize("on", ["", "postgres"])
def test_a_killed_run_shows_both_nodes_and_the_continuation(
    on: str, upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server(continuation="prefill", on=on).start()
    client, before = server.client, time.time()
    model = upstream.model([text("w0 "), text("w1 "), Gate()], stream_words(PIECES))
    with client.stream(model) as stream:
        stream.read_delta("w1 ")
        running = get_timeline(client, stream.id)
        (listed,) = client.list_responses("?details=true")
        server.kill()
        response_id = stream.id
    assert types_of(running) == ["queued", "start", "first_token"]
    assert running["ended_at"] is None and running["attempts"] == 1
    node = running["entries"][1]["node"]
    assert (listed["outlive"]["node"], listed["outlive"]["attempts"]) == (node, 1)
    assert listed["outlive"]["events"] == running["events"]

    server.start()
    body = client.wait_ended(response_id)
    timeline = get_timeline(client, response_id)
    assert types_of(timeline) == ["queued", "start", "first_token", "takeover", "continuation", "end"]
    entries = {entry["type"]: entry for entry in timeline["entries"]}
    assert entries["start"]["node"] == node != entries["takeover"]["node"]
    assert [entries["continuation"]["sequence_number"]] == body["outlive"]["resumed_at"]
    assert timeline["attempts"] == body["outlive"]["attempts"] == 2
    assert before <= timeline["created_at"] <= timeline["first_token_at"] <= timeline["ended_at"] <= time.time() + 0.01
    frames = client.replay(response_id)
    assert timeline["events"] == len(frames) == entries["end"]["sequence_number"] + 1
    assert timeline["flushes"][0] == [0, timeline["created_at"]]
    (listed,) = client.list_responses("?details=true")
    details = listed["outlive"]
    assert (details["node"], details["events"], details["attempts"]) == (entries["takeover"]["node"], len(frames), 2)
    assert details["ended_at"] == timeline["ended_at"]

    server.kill()
    server.start(OUTLIVE_PACK_AFTER="0.1")
    wait_until(lambda: b"outlive_packed_responses_total 1.0" in client.get("/metrics").body, "its journal is packed")
    packed = get_timeline(client, response_id)
    assert types_of(packed) == types_of(timeline)
    assert (packed["attempts"], packed["events"]) == (timeline["attempts"], timeline["events"])
    for before_packing, after in zip(timeline["entries"], packed["entries"], strict=True):
        assert after.get("node") == before_packing.get("node")
        assert after["at"] == pytest.approx(before_packing["at"], abs=0.001)
    assert [number for number, _ in packed["flushes"]] == [number for number, _ in timeline["flushes"]]


def test_tool_calls_and_a_cancel_are_milestones(upstream: FakeUpstream, make_server: MakeServer) -> None:
    client = make_server().start().client
    script = [reasoning("Hm"), call(0, "{}", "call_1", "weather"), *ending("tool_calls")]
    called = client.create(upstream.model(script), tools=[{"type": "function", "name": "weather", "parameters": {}}])
    timeline = get_timeline(client, called.json()["id"])
    assert types_of(timeline) == ["queued", "start", "first_token", "tool_call", "end"]
    entry = timeline["entries"][3]
    assert (entry["item_type"], entry["name"], entry["status"]) == ("function_call", "weather", "completed")
    assert entry["at"] <= entry["ended_at"] <= timeline["ended_at"]

    response_id = client.submit(upstream.model([text("w0"), HANG]))
    with client.follow(response_id) as stream:
        stream.read_delta("w0")
    client.cancel(response_id)
    timeline = get_timeline(client, response_id)
    assert types_of(timeline) == ["queued", "start", "first_token", "cancel", "end"]
    assert timeline["entries"][-1]["status"] == timeline["status"] == "cancelled"


def test_a_timeline_of_an_unknown_response_is_not_found(make_server: MakeServer) -> None:
    client = make_server().start().client
    assert client.get("/v1/responses/resp_none/timeline").status == 404
    answer = client.get("/v1/responses?details=perhaps")
    assert (answer.status, answer.error["param"]) == (400, "details")
