"""Measures takeovers: how long a client waits for the next event after the node that ran its response was killed."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.cluster import Cluster, Node
from tests.support.http_client import EventStream
from tests.support.postgres import PostgresServer
from tests.support.scripts import find_rest, stream_words, words
from tests.support.upstream import HANG, FakeUpstream, Json, Script, text

LEASES = (10.0, 3.0)
VICTIMS = 10  # nodes that are killed in one round, one after the other
SHOWN = 20  # words before the upstream is silent, so that the next event can only come from another node


def measure(kills: int, lease: float) -> list[float]:
    """Kill so many nodes, each while it runs a response, and return the seconds until the next event of each response
    reached a client on another node."""
    pieces = words(2 * SHOWN)
    took: list[float] = []

    def answer(body: Json) -> Script:
        rest = find_rest(pieces, body) or []
        return [*map(text, rest[:SHOWN]), HANG] if len(rest) == len(pieces) else stream_words(pieces)(body)

    postgres = PostgresServer(durable=True)
    with tempfile.TemporaryDirectory() as folder, FakeUpstream() as upstream:
        postgres.create()
        try:
            with Cluster(Path(folder), upstream.url, continuation="prefill", lease=lease, postgres=postgres) as cluster:
                survivor = cluster.start(1)[0]
                for _ in range(VICTIMS):
                    cluster.add("--max-running", "1")
                while len(took) < kills:
                    took += _kill_all(cluster, survivor, upstream.model(answer))
        finally:
            postgres.remove()
    return took[:kills]


def _kill_all(cluster: Cluster, survivor: Node, model: str) -> list[float]:
    """Start the other nodes, kill each while it runs a response, and return the seconds of each takeover."""
    victims = [node for node in cluster.nodes if node is not survivor]
    for node in victims:
        node.launch()
    with ThreadPoolExecutor(VICTIMS) as pool:
        followed = []
        for node in victims:
            node.wait_ready()
            own = node.client.stream(model)
            own.read_delta(f"w{SHOWN - 1} ")
            followed.append(survivor.client.follow(own.id, after=own.last_number))
            own.close()
        waiting = []
        for node, stream in zip(victims, followed, strict=True):
            node.kill()
            waiting.append(pool.submit(_time_next, stream, time.monotonic()))
            time.sleep(0.2)  # not in step with each other, nor with the survivor's poll
        return [each.result() for each in waiting]


def _time_next(stream: EventStream, since: float) -> float:
    stream.read_frame()
    took = time.monotonic() - since
    stream.read_all().close()
    return took
