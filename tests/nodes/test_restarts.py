"""Restarts of the nodes, one after the other, and of Postgres, while responses run."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.nodes.conftest import MakeCluster
from tests.support.checks import check_conversation, check_ended
from tests.support.cluster import ResumingReader
from tests.support.http_client import text_of
from tests.support.postgres import PostgresServer
from tests.support.scripts import find_rest, stream_words, words
from tests.support.upstream import HANG, FakeUpstream, Gate, Json, Pause, Script, Step, call, ending, say, text
from tests.support.waiting import wait_until


def test_a_rolling_restart_fails_no_response_and_loses_no_event(
    make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    # No node may wait for its grace period: that is longer than `terminate` waits for the exit.
    cluster = make_cluster("--grace-seconds", "60").start(3)
    pieces, restarted = words(50), Gate()

    def stream_some(body: Json) -> Script:
        """Send ten more words in each attempt, and the rest once every node was restarted."""
        rest = find_rest(pieces, body)
        assert rest is not None
        steps: list[Step] = [step for piece in rest[:10] for step in (Pause(0.05), text(piece))]
        return [*steps, restarted, *map(text, rest[10:]), *ending()]

    texts = upstream.model(stream_some)
    # Nothing visible until long after the first restart.
    slow = upstream.model(stream_words(["At ", "last."], pause=1.5))
    # A call cannot be continued elsewhere, so that its node finishes it first.
    tools = upstream.model([call(0, "{}", id="call_1", name="look"), *say("Looked.")])
    conversations = [cluster[0].client.create_conversation() for _ in range(6)]
    readers: list[ResumingReader] = []
    for number, conversation in enumerate(conversations):
        stream = cluster[number % 3].client.stream(texts, conversation=conversation)
        stream.read_type("response.created")
        readers.append(ResumingReader(cluster, stream.id, stream, seed=number))
    for number in range(6):
        response_id = cluster[number % 3].client.submit(slow)
        readers.append(ResumingReader(cluster, response_id, seed=100 + number))
    for node in cluster.nodes:
        tool_id = node.client.submit(tools)
        assert node.terminate() == 0
        node.restart()
        readers.append(ResumingReader(cluster, tool_id))
    restarted.open()
    for reader in readers:
        reader.wait()
    bodies = [check_ended(cluster[number % 3].client, each.id, each.frames) for number, each in enumerate(readers)]
    assert {body["status"] for body in bodies} == {"completed"}
    assert {text_of(body) for body in bodies[:6]} == {"".join(pieces)}
    assert {text_of(body) for body in bodies[6:12]} == {"At last."}
    assert all(reader.resumed for reader in readers[:6]), "the restart of its node cuts a reader"
    for conversation, body in zip(conversations, bodies, strict=False):
        check_conversation(cluster[1].client, conversation, [body])
    cluster.check()


def test_a_request_that_waits_for_the_database_is_a_503_when_its_node_shuts_down(
    make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    cluster = make_cluster("--grace-seconds", "0.1")
    leaving = cluster.add(proxied=True)
    cluster.start(1)
    assert leaving.proxy is not None
    response_id = cluster[1].client.submit(upstream.model(say("Hi")))
    cluster[1].client.wait_ended(response_id)
    with ThreadPoolExecutor(1) as pool:
        leaving.proxy.freeze()
        cancelling = pool.submit(leaving.client.cancel, response_id)
        time.sleep(0.2)
        leaving.send_signal(signal.SIGTERM)
        answer = cancelling.result()
    assert answer.status == 503, answer
    assert answer.headers["retry-after"] == "2"
    assert "shutting down" in answer.error["message"]


@pytest.fixture
def primary_and_standby() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A Postgres server of the test's own, and a standby that its commits wait for."""
    with ExitStack() as stack:
        primary = PostgresServer(settings={"synchronous_commit": "on"})
        stack.callback(primary.remove)
        standby = primary.create().make_standby(name="second")
        stack.callback(standby.remove)
        yield primary, standby


def test_a_restart_of_postgres_and_a_promoted_standby_lose_nothing(
    primary_and_standby: tuple[PostgresServer, PostgresServer], make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    primary, standby = primary_and_standby
    cluster = make_cluster()
    cluster.database = f"postgresql://outlive@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    cluster.start(3)  # at the same time, on an empty database
    pieces, promoted = words(60), Gate()
    script: list[Step] = [step for piece in pieces[:40] for step in (Pause(0.05), text(piece))]
    model = upstream.model([*script, promoted, *map(text, pieces[40:]), *ending()])
    hanging = upstream.model([HANG])
    streams = [cluster[number % 3].client.stream(model) for number in range(6)]
    for stream in streams:
        stream.read_type("response.output_text.delta")
    readers = [ResumingReader(cluster, stream.id, stream, seed=n) for n, stream in enumerate(streams)]
    readers += [ResumingReader(cluster, stream.id, seed=100 + n) for n, stream in enumerate(streams)]
    running = cluster[0].client.submit(hanging)
    primary.restart()
    readers[0].wait_count(30)
    primary.stop(signal.SIGQUIT)
    standby.promote()
    promoted.open()
    for reader in readers:
        reader.wait()
    for reader in readers:
        body = check_ended(cluster[1].client, reader.id, reader.frames)
        assert (body["status"], text_of(body), body.get("outlive")) == ("completed", "".join(pieces), None)
    wait_until(lambda: cluster[1].client.ready_status() == 200, "the node is ready again")
    assert cluster[1].client.cancel(running).json()["status"] == "cancelled"
    wait_until(lambda: standby.sql("SELECT count(*) FROM outlive.leases") == "0", "no lease is left")
