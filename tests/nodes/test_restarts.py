"""Restarts: of the nodes, one after the other, and of Postgres itself, in the middle of everything."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.crash.checker import check_conversation, check_ended
from tests.crash.client import text_of, wait_until
from tests.crash.stories import tell, words
from tests.nodes.conftest import MakeCrew
from tests.nodes.crew import Watch
from tests.nodes.reader import Reader
from tests.support.postgres import Cluster
from tests.support.upstream import HANG, FakeUpstream, call, say


def test_a_rolling_restart_fails_no_response_and_loses_no_event(make_crew: MakeCrew, upstream: FakeUpstream) -> None:
    crew = make_crew(3, "--grace-seconds", "10")
    crew.start()
    story = words(50)
    texts = upstream.model(tell(story, pause=0.05))
    # Nothing visible until long after the restarts began, and something that cannot be continued: it gets its grace.
    slow = upstream.model(tell(["At ", "last."], pause=1.5))
    tools = upstream.model([call(0, "{}", id="call_1", name="look"), *say("Looked.")])
    conversations = [crew[0].client.new_conversation() for _ in range(6)]
    readers: list[Reader] = []
    for number, conversation in enumerate(conversations):
        streaming = crew[number % 3].client.stream(texts, conversation=conversation)
        streaming.read_type("response.created")
        readers.append(Reader(crew, streaming.id, streaming, seed=number))
    for number in range(6):
        response_id = crew[number % 3].client.start(slow)
        readers.append(Reader(crew, response_id, seed=100 + number))
    for node in crew.nodes:
        tool_id = node.client.start(tools)
        watch = Watch()
        node.terminate(wait=False)
        assert node.wait_exit() == 0
        assert watch.seconds < 5
        node.restart()
        readers.append(Reader(crew, tool_id))
    for reader in readers:
        reader.wait()
    bodies = [check_ended(crew[number % 3].client, each.id, each.frames) for number, each in enumerate(readers)]
    assert {body["status"] for body in bodies} == {"completed"}
    assert {text_of(body) for body in bodies[:6]} == {"".join(story)}
    assert {text_of(body) for body in bodies[6:12]} == {"At last."}
    assert sum(reader.resumed for reader in readers) >= 6
    for conversation, body in zip(conversations, bodies, strict=False):
        check_conversation(crew[1].client, conversation, [body])
    crew.check()


@pytest.fixture
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """A Postgres of one's own, and a standby that its commits wait for."""
    with ExitStack() as stack:
        primary = Cluster(settings={"synchronous_commit": "on"})
        stack.callback(primary.remove)
        standby = primary.create().make_standby(name="second")
        stack.callback(standby.remove)
        yield primary, standby


def test_a_restart_of_postgres_and_a_promoted_standby_delay_and_lose_nothing(
    pair: tuple[Cluster, Cluster], make_crew: MakeCrew, upstream: FakeUpstream
) -> None:
    primary, standby = pair
    crew = make_crew(0)
    crew.database = f"postgresql://outlive@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    for _ in range(3):
        crew.add()
    crew.start()  # all at once, on an empty database
    story = words(60)
    model, silent = upstream.model(tell(story, pause=0.05)), upstream.model([HANG])
    streaming = [crew[number % 3].client.stream(model) for number in range(6)]
    for stream in streaming:
        stream.read_type("response.output_text.delta")
    readers = [Reader(crew, stream.id, stream, seed=n) for n, stream in enumerate(streaming)]
    readers += [Reader(crew, stream.id, seed=100 + n) for n, stream in enumerate(streaming)]
    waiting = crew[0].client.start(silent)
    primary.restart()
    readers[0].wait_count(30)
    primary.stop(signal.SIGQUIT)
    standby.promote()
    for reader in readers:
        reader.wait()
    for reader in readers:
        body = check_ended(crew[1].client, reader.id, reader.frames)
        assert (body["status"], text_of(body), body.get("outlive")) == ("completed", "".join(story), None)
    wait_until(lambda: crew[1].client.readyz() == 200, "it is ready again")
    assert crew[1].client.ask("POST", f"/v1/responses/{waiting}/cancel").body["status"] == "cancelled"
    wait_until(lambda: standby.sql("SELECT count(*) FROM outlive.leases") == "0", "all leases are gone")
