"""A node that dies, hangs or is cut off: the others take over in time, and what it wakes up with it cannot write."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.crash.checker import check_conversation, check_ended
from tests.crash.client import text_of, wait_until
from tests.crash.stories import remaining, tell, words
from tests.nodes.crew import LEASE, Crew, Watch
from tests.nodes.line import Line
from tests.support.upstream import HANG, FakeUpstream, Gate, Json, Script, call, ending, say, text

TAKEOVER = LEASE + 2.0


@pytest.fixture(scope="module")
def crew(upstream: FakeUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Four nodes, for all tests of this module: each has its own to do something to. The last has a line of its own."""
    crew = Crew(tmp_path_factory.mktemp("crew"), upstream.url, continuation="prefill")
    with Line(crew.database) as line:
        crew.add()
        for database in (crew.database, crew.database, line.url):
            crew.add("--max-running", "2", database=database)
        crew.line = line
        crew.start()
        yield crew
        crew.stop()


def test_what_a_killed_node_ran_goes_on_elsewhere_in_time(crew: Crew, upstream: FakeUpstream) -> None:
    first, second, third, _ = crew.nodes
    story = words(40)

    def tell_half(body: Json) -> Script:
        left = remaining(story, body) or []
        return [*(text(piece) for piece in left[:20]), HANG] if len(left) == 40 else tell(story)(body)

    silent, texts = upstream.model([HANG], say("At", " last")), upstream.model(tell_half)
    tools = upstream.model([text("Let me see."), call(0, "{", id="call_1", name="look"), HANG])
    conversation = first.client.new_conversation()
    ids = [first.client.start(model) for model in (silent, tools)]
    streaming = first.client.stream(texts, conversation=conversation)  # this client's connection dies with its node
    streaming.read_until(lambda event: event.get("delta") == "w19 ")
    ids.append(streaming.id)
    streams = [second.client.follow(response_id) for response_id in ids]  # these clients are on another one
    threads = [stream.read_behind() for stream in streams]
    streams[1].wait_seen(6)
    upstream.wait_call(silent)

    first.kill()
    watch = Watch()
    assert streaming.read_all().cut
    upstream.wait_call(silent, 2, timeout=TAKEOVER)  # the one with nothing visible is running elsewhere
    wait_until(lambda: third.client.get(ids[1])["status"] == "incomplete", "it has ended")
    with third.client.follow(streaming.id, after=streaming.last) as resumed:
        resumed.read_type("response.output_text.delta")
    assert watch.seconds < TAKEOVER
    for thread in threads:
        thread.join(20)

    bodies = [check_ended(third.client, each, stream.frames) for each, stream in zip(ids, streams, strict=True)]
    assert [body["status"] for body in bodies] == ["completed", "incomplete", "completed"]
    assert text_of(bodies[0]) == "At last" and bodies[0]["outlive"]["attempts"] == 2
    assert bodies[1]["incomplete_details"]["reason"] == "interrupted"
    # The same text, in the same item, on the same cursor: nothing of what was shown is repeated or lost.
    assert text_of(bodies[2]) == "".join(story)
    assert len(bodies[2]["output"]) == 1
    assert bodies[2]["outlive"]["resumed_at"] == [streaming.last + 1]
    check_ended(second.client, streaming.id, streaming.frames)
    check_conversation(second.client, conversation, [bodies[2]])
    crew.check()


def test_a_node_that_was_stopped_past_its_lease_writes_nothing(crew: Crew, upstream: FakeUpstream) -> None:
    _, stale, other, _ = crew.nodes
    gates = [Gate(), Gate()]
    visible = upstream.model([text("Hel"), gates[0], text("<STALE>"), *ending()], [gates[1], text("lo"), *ending()])
    silent = upstream.model([gates[0], *say("<STALE>")], [gates[1], *say("Hello")])
    ids = [stale.client.start(model) for model in (visible, silent)]
    streams = [other.client.follow(response_id) for response_id in ids]
    streams[0].read_type("response.output_text.delta")
    upstream.wait_call(silent)

    stale.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
    watch = Watch()
    for model in (visible, silent):
        upstream.wait_call(model, 2, timeout=TAKEOVER)
    assert LEASE * 0.5 < watch.seconds < TAKEOVER
    gates[0].open()  # what the stopped node will find when it wakes up
    time.sleep(0.1)
    stale.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
    for model in (visible, silent):
        upstream.wait_call(model).wait_over(5)
    wait_until(lambda: stale.client.readyz() == 200, "it is alive again")
    time.sleep(0.3)
    gates[1].open()
    for response_id, stream in zip(ids, streams, strict=True):
        stream.read_all()
        body = check_ended(stale.client, response_id, stream.frames)
        assert (body["status"], text_of(body)) == ("completed", "Hello")
    # And it goes on being a node like any other.
    assert text_of(stale.client.create(upstream.model(say("Hi"))).body) == "Hi"
    crew.check()


def test_a_node_cut_off_from_the_database_keeps_what_it_has_and_drops_what_was_taken(
    crew: Crew, upstream: FakeUpstream
) -> None:
    *rest, other, lonely = crew.nodes
    for node in rest:
        node.kill()
    assert crew.line is not None
    meanwhile, later = Gate(), Gate()
    taken = upstream.model([text("Hel"), meanwhile, text("<STALE>"), *ending()], [later, text("lo"), *ending()])
    kept = upstream.model([text("Once "), meanwhile, text("upon"), *ending()])
    # The other has room for one of them only, and takes the older.
    blocking = other.client.start(upstream.model([later, *say("done")]))
    ids = [lonely.client.start(model) for model in (taken, kept)]
    streams = [other.client.follow(response_id) for response_id in ids]
    for stream in streams:
        stream.read_type("response.output_text.delta")
    crew.line.cut()
    upstream.wait_call(taken, 2, timeout=TAKEOVER)
    assert crew.holder(ids[1]) == ""
    meanwhile.open()  # both go on, and nobody may see anything of it yet
    upstream.wait_call(kept).wait_over(5)
    assert other.client.get(ids[1])["status"] == "in_progress"
    assert lonely.client.readyz() == 503
    crew.line.mend()
    streams[1].read_all()
    body = check_ended(other.client, ids[1], streams[1].frames)
    assert (body["status"], text_of(body), body.get("outlive")) == ("completed", "Once upon", None)
    later.open()
    streams[0].read_all()
    body = check_ended(lonely.client, ids[0], streams[0].frames)
    assert (body["status"], text_of(body), body["outlive"]["attempts"]) == ("completed", "Hello", 2)
    check_ended(lonely.client, blocking)
    crew.check()
