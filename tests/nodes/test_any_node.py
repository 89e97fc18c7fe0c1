"""Any node serves any response: create on one, stream from another, resume on a third, cancel from whichever."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection

import pytest

from tests.crash.checker import check_conversation, check_ended
from tests.crash.client import Stream, text_of
from tests.crash.stories import tell, words
from tests.nodes.crew import Crew, Watch
from tests.support.upstream import HANG, FakeUpstream, Gate, ending, say, text


def test_create_here_stream_there_resume_elsewhere(trio: Crew, upstream: FakeUpstream) -> None:
    first, second, third = (node.client for node in trio.nodes)
    gates = [Gate(), Gate()]
    model = upstream.model([text("Once "), gates[0], text("upon "), gates[1], text("a time."), *ending()])
    conversation = first.new_conversation()
    with first.stream(model, conversation=conversation) as created:
        created.read_type("response.output_text.delta")
        response_id = created.id
        with second.follow(response_id) as streamed:
            streamed.read_type("response.output_text.delta")
            gates[0].open()
            streamed.read_type("response.output_text.delta")
            last = streamed.last
        with third.follow(response_id, after=last) as resumed:
            assert text_of(second.get(response_id)) == "Once upon "  # as far as it is, on whichever node
            gates[1].open()
            resumed.read_all()
        created.read_all()
    assert created.whole and resumed.whole
    assert streamed.frames + resumed.frames == created.frames
    bodies = [check_ended(client, response_id, created.frames) for client in (first, second, third)]
    assert bodies[0] == bodies[1] == bodies[2]
    assert (bodies[0]["status"], text_of(bodies[0])) == ("completed", "Once upon a time.")
    check_conversation(third, conversation, bodies[:1])


def test_a_wait_on_another_node_ends_with_the_response(trio: Crew, upstream: FakeUpstream) -> None:
    gate = Gate()
    response_id = trio[0].client.start(upstream.model([text("Hi"), gate, *ending()]))
    answers = {}

    def wait(node: int) -> None:
        answers[node] = trio[node].client.get(response_id, "?wait=30")

    threads = [threading.Thread(target=wait, args=(node,)) for node in (1, 2)]
    for thread in threads:
        thread.start()
    gate.wait_reached()
    assert trio[1].client.get(response_id, "?wait=0.2")["status"] == "in_progress"
    watch = Watch()
    gate.open()
    for thread in threads:
        thread.join(20)
    assert watch.seconds < 1.0
    assert {each["status"] for each in answers.values()} == {"completed"}


def test_a_cancel_on_another_node_stops_the_upstream_within_a_second(trio: Crew, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Hel"), HANG])
    with trio[0].client.stream(model) as stream:
        stream.read_type("response.output_text.delta")
        asked = upstream.wait_call(model)
        watch = Watch()
        cancelled = trio[1].client.ask("POST", f"/v1/responses/{stream.id}/cancel")
        asked.wait_left(5)
        assert watch.seconds < 1.0
        assert (cancelled.status, cancelled.body["status"], text_of(cancelled.body)) == (200, "cancelled", "Hel")
        stream.read_all()
    assert stream.whole and stream.events[-1]["type"] == "response.cancelled"
    check_ended(trio[2].client, stream.id, stream.frames)


def test_a_locked_conversation_is_locked_on_every_node(trio: Crew, upstream: FakeUpstream) -> None:
    gate = Gate()
    conversation = trio[0].client.new_conversation()
    running = trio[0].client.start(upstream.model([gate, *say("Hi")]), conversation=conversation)
    refused = trio[1].client.create("any", conversation=conversation)
    assert (refused.status, refused.body["error"]["code"]) == (400, "conversation_locked")
    assert running in refused.body["error"]["message"]
    gate.open()
    trio[2].client.wait_end(running)
    assert trio[1].client.create("any", conversation=conversation).status == 200


@pytest.mark.parametrize("running", [True, False])
def test_a_repeat_on_another_node_attaches_from_the_first_event(
    trio: Crew, upstream: FakeUpstream, running: bool
) -> None:
    gate = Gate()
    model = upstream.model([text("Hi "), gate, text("there."), *ending()])
    body = {"model": model, "input": "Hi", "stream": True}
    headers = {"idempotency-key": f"key-{running}"}
    if not running:
        gate.open()
    first = trio[0].client._open("POST", "/v1/responses", body, headers)
    gate.wait_reached()
    with Stream(*first) as original, Stream(*trio[1].client._open("POST", "/v1/responses", body, headers)) as repeat:
        repeat.read_type("response.created")
        gate.open()
        original.read_all()
        repeat.read_all()
    assert original.whole and repeat.whole
    assert repeat.frames == original.frames
    assert len(upstream.calls(model)) == 1


def test_what_is_deleted_on_one_node_is_gone_on_all(trio: Crew, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Hel"), HANG])
    response_id = trio[0].client.start(model)
    with trio[1].client.follow(response_id) as stream:
        stream.read_type("response.output_text.delta")
        assert trio[2].client.ask("DELETE", f"/v1/responses/{response_id}").status == 200
        # Whoever was reading is told how it ended, or is cut: the bytes are going.
        stream.read_all()
        assert stream.cut or stream.events[-1]["type"] == "response.cancelled"
    for node in trio.nodes:
        assert node.client.ask("GET", f"/v1/responses/{response_id}").status == 404
    upstream.wait_call(model).wait_left(5)


def test_lists_are_the_same_on_every_node(trio: Crew, upstream: FakeUpstream) -> None:
    gate = Gate()
    response_id = trio[0].client.start(upstream.model([gate, *say("Hi")]), metadata={"name": "listed"})
    gate.wait_reached()
    for node in trio.nodes:
        data = node.client.ask("GET", "/v1/responses?status=in_progress&limit=100").body["data"]
        (found,) = [each for each in data if each["id"] == response_id]
        assert (found["status"], found["metadata"]) == ("in_progress", {"name": "listed"})
    gate.open()
    trio[1].client.wait_end(response_id)


def test_a_silent_retry_finds_the_response_on_another_node(trio: Crew, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi")])
    body = {"model": model, "input": "Hi"}
    first = HTTPConnection("127.0.0.1", trio[0].port)
    headers = {"content-type": "application/json", "x-stainless-retry-count": "0"}
    first.request("POST", "/v1/responses", json.dumps(body).encode(), headers)
    gate.wait_reached()
    first.close()  # the client gave up on it
    answers = []
    again = threading.Thread(
        target=lambda: answers.append(
            trio[1].client.ask("POST", "/v1/responses", body, **{"x-stainless-retry-count": "1"})
        )
    )
    again.start()
    gate.open()
    again.join(20)
    assert answers[0].status == 200 and text_of(answers[0].body) == "Hi"
    assert len(upstream.calls(model)) == 1


def test_many_streams_read_elsewhere_lose_nothing(trio: Crew, upstream: FakeUpstream) -> None:
    story = words(60)
    model = upstream.model(tell(story, pause=0.01))
    streams = []
    for number in range(24):
        response_id = trio[number % 3].client.start(model)
        streams.append((response_id, trio[(number + 1) % 3].client.follow(response_id)))
    threads = [stream.read_behind() for _, stream in streams]
    for thread in threads:
        thread.join(30)
    for number, (response_id, stream) in enumerate(streams):
        assert stream.whole
        assert stream.frames == trio[(number + 2) % 3].client.replay(response_id)
        assert text_of(stream.events[-1]["response"]) == "".join(story)
