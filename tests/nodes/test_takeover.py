"""A node that dies, stops or loses its database: the others take its runs over, and it can write nothing afterwards."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.support.checks import check_conversation, check_ended
from tests.support.cluster import LEASE, Cluster
from tests.support.http_client import text_of
from tests.support.scripts import find_rest, stream_words, words
from tests.support.upstream import HANG, FakeUpstream, Gate, Json, Script, call, ending, say, text
from tests.support.waiting import Stopwatch, wait_until

# The lease and a few polls; the rest is for a busy machine.
TAKEOVER_SECONDS = LEASE + 8.0


@pytest.fixture(scope="module")
def four_nodes(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four nodes for all tests of this module, each of which kills or stops its own. The last has a proxy."""
    with Cluster(tmp_path_factory.mktemp("four-nodes"), upstream.url, continuation="prefill") as cluster:
        cluster.add()
        for proxied in (False, False, True):
            cluster.add("--max-running", "2", proxied=proxied)
        yield cluster.start()


def test_the_runs_of_a_killed_node_are_taken_over(four_nodes: Cluster, upstream: FakeUpstream) -> None:
    first, second, third, _ = four_nodes.nodes
    pieces = words(40)

    def stream_half(body: Json) -> Script:
        rest = find_rest(pieces, body) or []
        return [*map(text, rest[:20]), HANG] if len(rest) == 40 else stream_words(pieces)(body)

    silent, texts = upstream.model([HANG], say("At", " last")), upstream.model(stream_half)
    tools = upstream.model([text("Let me see."), call(0, "{", id="call_1", name="look"), HANG])
    conversation = first.client.create_conversation()
    ids = [first.client.submit(model) for model in (silent, tools)]
    direct = first.client.stream(texts, conversation=conversation)  # this client's connection dies with its node
    direct.read_delta("w19 ")
    ids.append(direct.id)
    streams = [second.client.follow(response_id) for response_id in ids]  # these clients read from another node
    threads = [stream.read_in_background() for stream in streams]
    streams[1].wait_frames(6)
    upstream.wait_call(silent)

    first.kill()
    stopwatch = Stopwatch()
    assert direct.read_all().cut
    upstream.wait_call(silent, 2, timeout=TAKEOVER_SECONDS)  # the one with nothing visible is run again
    wait_until(lambda: third.client.retrieve(ids[1])["status"] == "incomplete", "the tool call has ended")
    with third.client.follow(direct.id, after=direct.last_number) as resumed:
        resumed.read_type("response.output_text.delta")
    assert stopwatch.seconds < TAKEOVER_SECONDS
    for thread in threads:
        thread.join(20)

    bodies = [check_ended(third.client, each, stream.frames) for each, stream in zip(ids, streams, strict=True)]
    assert [body["status"] for body in bodies] == ["completed", "incomplete", "completed"]
    assert text_of(bodies[0]) == "At last" and bodies[0]["outlive"]["attempts"] == 2
    assert bodies[1]["incomplete_details"]["reason"] == "interrupted"
    # The text is continued in the same item under the same cursor: nothing that was shown is repeated or lost.
    assert text_of(bodies[2]) == "".join(pieces)
    assert len(bodies[2]["output"]) == 1
    assert bodies[2]["outlive"]["resumed_at"] == [direct.last_number + 1]
    check_ended(second.client, direct.id, direct.frames)
    check_conversation(second.client, conversation, [bodies[2]])
    four_nodes.check()


def test_a_node_stopped_past_its_lease_writes_nothing_when_it_continues(
    four_nodes: Cluster, upstream: FakeUpstream
) -> None:
    _, stale, other, _ = four_nodes.nodes
    gates = [Gate(), Gate()]
    visible = upstream.model([text("Hel"), gates[0], text("<STALE>"), *ending()], [gates[1], text("lo"), *ending()])
    silent = upstream.model([gates[0], *say("<STALE>")], [gates[1], *say("Hello")])
    ids = [stale.client.submit(model) for model in (visible, silent)]
    streams = [other.client.follow(response_id) for response_id in ids]
    streams[0].read_type("response.output_text.delta")
    upstream.wait_call(silent)

    stale.send_signal(signal.SIGSTOP)
    stopwatch = Stopwatch()
    for model in (visible, silent):
        upstream.wait_call(model, 2, timeout=TAKEOVER_SECONDS)
    assert LEASE * 0.25 < stopwatch.seconds < TAKEOVER_SECONDS
    gates[0].open()  # the stopped node will find these answers when it continues
    time.sleep(0.1)
    stale.send_signal(signal.SIGCONT)
    for model in (visible, silent):
        upstream.wait_call(model).wait_finished()
    wait_until(lambda: stale.client.ready_status() == 200, "the stopped node is ready again")
    time.sleep(0.3)  # in which it could write
    gates[1].open()
    for response_id, stream in zip(ids, streams, strict=True):
        stream.read_all()
        body = check_ended(stale.client, response_id, stream.frames)
        assert (body["status"], text_of(body)) == ("completed", "Hello")
    # It serves new responses like any other node.
    assert text_of(stale.client.create(upstream.model(say("Hi"))).json()) == "Hi"
    four_nodes.check()


def test_a_node_without_its_database_keeps_its_runs_except_those_taken_over(
    four_nodes: Cluster, upstream: FakeUpstream
) -> None:
    *rest, other, isolated = four_nodes.nodes
    for node in rest:
        node.kill()
    assert isolated.proxy is not None
    during, after = Gate(), Gate()
    taken = upstream.model([text("Hel"), during, text("<STALE>"), *ending()], [after, text("lo"), *ending()])
    kept = upstream.model([text("Once "), during, text("upon"), *ending()])
    # The other node has a slot for one of them only, and takes the older.
    blocking = other.client.submit(upstream.model([after, *say("done")]))
    ids = [isolated.client.submit(model) for model in (taken, kept)]
    streams = [other.client.follow(response_id) for response_id in ids]
    for stream in streams:
        stream.read_type("response.output_text.delta")
    isolated.proxy.block()
    upstream.wait_call(taken, 2, timeout=TAKEOVER_SECONDS)
    assert four_nodes.find_owner(ids[1]) == ""
    during.open()  # both upstreams go on, and no client may see anything of it yet
    upstream.wait_call(kept).wait_finished()
    assert other.client.retrieve(ids[1])["status"] == "in_progress"
    assert isolated.client.ready_status() == 503
    isolated.proxy.unblock()
    streams[1].read_all()
    body = check_ended(other.client, ids[1], streams[1].frames)
    assert (body["status"], text_of(body), body.get("outlive")) == ("completed", "Once upon", None)
    after.open()
    streams[0].read_all()
    body = check_ended(isolated.client, ids[0], streams[0].frames)
    assert (body["status"], text_of(body), body["outlive"]["attempts"]) == ("completed", "Hello", 2)
    check_ended(isolated.client, blocking)
    four_nodes.check()
