"""Any node serves any response: it is created on one, streamed from another, resumed on a third, cancelled from any."""

from __future__ import annotations

import threading

import pytest

from tests.nodes.conftest import MakeCluster
from tests.support.checks import check_conversation, check_ended
from tests.support.cluster import Cluster
from tests.support.http_client import Answer, text_of
from tests.support.scripts import stream_words, words
from tests.support.upstream import HANG, FakeUpstream, Gate, call, ending, say, text
from tests.support.waiting import Stopwatch

LOOKING = '''
from outlive.tools import tool


@tool
def look() -> str:
    """Look."""
    return "a lake"
'''


def test_a_response_is_created_streamed_and_resumed_on_three_nodes(
    three_nodes: Cluster, upstream: FakeUpstream
) -> None:
    first, second, third = (node.client for node in three_nodes.nodes)
    gates = [Gate(), Gate()]
    model = upstream.model([text("Once "), gates[0], text("upon "), gates[1], text("a time."), *ending()])
    conversation = first.create_conversation()
    with first.stream(model, conversation=conversation) as created:
        created.read_type("response.output_text.delta")
        response_id = created.id
        with second.follow(response_id) as streamed:
            streamed.read_type("response.output_text.delta")
            gates[0].open()
            streamed.read_type("response.output_text.delta")
            last = streamed.last_number
        with third.follow(response_id, after=last) as resumed:
            assert text_of(second.retrieve(response_id)) == "Once upon "  # its text so far, on any node
            gates[1].open()
            resumed.read_all()
        created.read_all()
    assert created.complete and resumed.complete
    assert streamed.frames + resumed.frames == created.frames
    bodies = [check_ended(client, response_id, created.frames) for client in (first, second, third)]
    assert bodies[0] == bodies[1] == bodies[2]
    assert (bodies[0]["status"], text_of(bodies[0])) == ("completed", "Once upon a time.")
    check_conversation(third, conversation, bodies[:1])


def test_a_wait_on_another_node_returns_when_the_response_ends(three_nodes: Cluster, upstream: FakeUpstream) -> None:
    gate = Gate()
    response_id = three_nodes[0].client.submit(upstream.model([text("Hi"), gate, *ending()]))
    answers = {}

    def wait(node: int) -> None:
        answers[node] = three_nodes[node].client.retrieve(response_id, "?wait=60")

    threads = [threading.Thread(target=wait, args=(node,)) for node in (1, 2)]
    for thread in threads:
        thread.start()
    gate.wait_reached()
    assert three_nodes[1].client.retrieve(response_id, "?wait=0.2")["status"] == "in_progress"
    gate.open()
    for thread in threads:
        thread.join(20)  # a third of the time that the requests may wait
    assert {each["status"] for each in answers.values()} == {"completed"} and len(answers) == 2


def test_a_cancel_on_another_node_stops_the_upstream_at_once(three_nodes: Cluster, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Hel"), HANG])
    with three_nodes[0].client.stream(model) as stream:
        stream.read_type("response.output_text.delta")
        asked = upstream.wait_call(model)
        stopwatch = Stopwatch()
        cancelled = three_nodes[1].client.cancel(stream.id)
        asked.wait_disconnected()
        # `make bench` measures how long it takes; here other tests may run at the same time.
        assert stopwatch.seconds < 5.0
        assert cancelled.status == 200
        assert (cancelled.json()["status"], text_of(cancelled.json())) == ("cancelled", "Hel")
        stream.read_all()
    assert stream.complete and stream.events[-1]["type"] == "response.cancelled"
    check_ended(three_nodes[2].client, stream.id, stream.frames)


def test_a_cancel_on_another_node_reports_the_usage_of_finished_steps(
    make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    cluster = make_cluster("--tools", "looking")
    for node in (cluster.add(), cluster.add()):
        node.folder.mkdir(parents=True, exist_ok=True)
        (node.folder / "looking.py").write_text(LOOKING)
    first, second = (node.client for node in cluster.start().nodes)
    model = upstream.model([call(0, "{}", "call_1", "look"), *ending("tool_calls")], [text("I see"), HANG])
    with first.stream(model, tools=[{"type": "mcp", "server_label": "outlive"}]) as stream:
        stream.read_type("response.output_text.delta")
        cancelled = second.cancel(stream.id).json()
    assert cancelled["status"] == "cancelled"
    assert (cancelled["usage"]["input_tokens"], cancelled["usage"]["output_tokens"]) == (5, 2)
    (used,) = second.get("/v1/usage").json()["data"]
    for kind, reported in (("input", 5), ("output", 2)):
        assert used[f"{kind}_tokens"] - used[f"estimated_{kind}_tokens"] == reported
        assert used[f"estimated_{kind}_tokens"] > 0  # of the step that was cut off


def test_a_locked_conversation_is_locked_on_every_node(three_nodes: Cluster, upstream: FakeUpstream) -> None:
    gate = Gate()
    conversation = three_nodes[0].client.create_conversation()
    running = three_nodes[0].client.submit(upstream.model([gate, *say("Hi")]), conversation=conversation)
    refused = three_nodes[1].client.create("any", conversation=conversation)
    assert (refused.status, refused.error["code"]) == (400, "conversation_locked")
    assert running in refused.error["message"]
    gate.open()
    three_nodes[2].client.wait_ended(running)
    assert three_nodes[1].client.create("any", conversation=conversation).status == 200


@pytest.mark.parametrize("running", [True, False])
def test_a_repeated_create_on_another_node_is_streamed_from_the_first_event(
    three_nodes: Cluster, upstream: FakeUpstream, running: bool
) -> None:
    gate = Gate()
    model = upstream.model([text("Hi "), gate, text("there."), *ending()])
    body = {"model": model, "input": "Hi", "stream": True}
    key = f"key-{running}"
    if not running:
        gate.open()
    with three_nodes[0].client.open_stream("POST", "/v1/responses", body, idempotency_key=key) as original:
        gate.wait_reached()
        with three_nodes[1].client.open_stream("POST", "/v1/responses", body, idempotency_key=key) as repeat:
            repeat.read_type("response.created")
            gate.open()
            original.read_all()
            repeat.read_all()
    assert original.complete and repeat.complete
    assert repeat.frames == original.frames
    assert len(upstream.calls(model)) == 1


def test_a_response_deleted_on_one_node_is_gone_on_all(three_nodes: Cluster, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Hel"), HANG])
    response_id = three_nodes[0].client.submit(model)
    with three_nodes[1].client.follow(response_id) as stream:
        stream.read_type("response.output_text.delta")
        assert three_nodes[2].client.delete(f"/v1/responses/{response_id}").status == 200
        # Its readers get the terminal event, or are cut: the journal is being deleted.
        stream.read_all()
        assert stream.cut or stream.events[-1]["type"] == "response.cancelled"
    for node in three_nodes.nodes:
        assert node.client.get(f"/v1/responses/{response_id}").status == 404
    upstream.wait_call(model).wait_disconnected()


def test_a_running_response_is_in_the_list_of_every_node(three_nodes: Cluster, upstream: FakeUpstream) -> None:
    gate = Gate()
    response_id = three_nodes[0].client.submit(upstream.model([gate, *say("Hi")]), metadata={"name": "listed"})
    gate.wait_reached()
    for node in three_nodes.nodes:
        data = node.client.list_responses("?status=in_progress&limit=100")
        (found,) = [each for each in data if each["id"] == response_id]
        assert (found["status"], found["metadata"]) == ("in_progress", {"name": "listed"})
    gate.open()
    three_nodes[1].client.wait_ended(response_id)


def test_a_silent_retry_on_another_node_gets_the_same_response(three_nodes: Cluster, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi")])
    body = {"model": model, "input": "Hi"}
    first = three_nodes[0].client.send("/v1/responses", body, x_stainless_retry_count="0")
    gate.wait_reached()
    first.close()  # the client gave up on it
    answers: list[Answer] = []

    def retry() -> None:
        answers.append(three_nodes[1].client.post("/v1/responses", body, x_stainless_retry_count="1"))

    retrying = threading.Thread(target=retry)
    retrying.start()
    gate.open()
    retrying.join(20)
    assert answers[0].status == 200 and text_of(answers[0].json()) == "Hi"
    assert len(upstream.calls(model)) == 1


def test_many_streams_from_other_nodes_lose_no_event(three_nodes: Cluster, upstream: FakeUpstream) -> None:
    pieces = words(60)
    model = upstream.model(stream_words(pieces, pause=0.01))
    streams = []
    for number in range(24):
        response_id = three_nodes[number % 3].client.submit(model)
        streams.append((response_id, three_nodes[(number + 1) % 3].client.follow(response_id)))
    threads = [stream.read_in_background() for _, stream in streams]
    for thread in threads:
        thread.join(30)
    for number, (response_id, stream) in enumerate(streams):
        assert stream.complete
        assert stream.frames == three_nodes[(number + 2) % 3].client.replay(response_id)
        assert text_of(stream.events[-1]["response"]) == "".join(pieces)
