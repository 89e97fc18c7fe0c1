"""Notifications between nodes may be lost: readers on other nodes are then about a second late, and lose nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.checks import check_ended
from tests.support.cluster import Cluster
from tests.support.http_client import event_of, text_of
from tests.support.scripts import stream_words, words
from tests.support.upstream import HANG, FakeUpstream, text
from tests.support.waiting import Stopwatch

# Nodes poll the journal once a second; the rest is for a busy machine.
POLL_SECONDS = 1.0 + 4.0

# The connections that listen, recognised by their last statement.
CUT_BELLS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND (query ILIKE 'LISTEN%' OR query LIKE '%pg_notify(%' OR query = 'SELECT 1')
   AND pid <> pg_backend_pid()
"""


@contextmanager
def bells_cut(cluster: Cluster) -> Iterator[None]:
    """Cut the connection of every bell, again and again."""
    over = threading.Event()

    def cut() -> None:
        while not over.wait(0.15):
            cluster.sql(CUT_BELLS)

    cluster.sql(CUT_BELLS)
    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_reader_on_another_node_is_hardly_late_while_the_bell_rings(
    three_nodes: Cluster, upstream: FakeUpstream
) -> None:
    with three_nodes[0].client.stream(upstream.model(stream_words(words(60), pause=0.01))) as here:
        here.read_type("response.created")
        with three_nodes[1].client.follow(here.id) as there:
            threads = [here.read_in_background(), there.read_in_background()]
            for thread in threads:
                thread.join(20)
    assert there.frames == here.frames
    seen = {event_of(frame)["sequence_number"]: at for frame, at in zip(here.frames, here.times, strict=True)}
    lags = sorted(
        at - seen[event_of(frame)["sequence_number"]] for frame, at in zip(there.frames, there.times, strict=True)
    )
    # Polling alone would make it half a second. `make bench` measures it on a quiet machine.
    assert lags[len(lags) // 2] < 0.3


def test_streams_and_cancels_go_on_within_a_poll_without_the_bell(three_nodes: Cluster, upstream: FakeUpstream) -> None:
    pieces = words(15)
    model, silent = upstream.model(stream_words(pieces, pause=0.1)), upstream.model([text("Hel"), HANG])
    with bells_cut(three_nodes):
        here = three_nodes[0].client.stream(model)
        here.read_type("response.created")
        there = three_nodes[1].client.follow(here.id)
        threads = [here.read_in_background(), there.read_in_background()]

        with three_nodes[0].client.stream(silent) as cancelled:
            cancelled.read_type("response.output_text.delta")
            stopwatch = Stopwatch()
            assert three_nodes[2].client.cancel(cancelled.id).json()["status"] == "cancelled"
            upstream.wait_call(silent).wait_disconnected()
            assert stopwatch.seconds < POLL_SECONDS

        for thread in threads:
            thread.join(20)
    assert here.complete and there.complete
    assert there.frames == here.frames
    lags = [later - sooner for sooner, later in zip(here.times, there.times, strict=True)]
    assert max(lags) < POLL_SECONDS
    body = check_ended(three_nodes[2].client, here.id, there.frames)
    assert text_of(body) == "".join(pieces)
