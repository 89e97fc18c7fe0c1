"""An owner's limit of running responses over all nodes: stored or not, and chat completions."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from tests.nodes.conftest import MakeCluster
from tests.support.cluster import LEASE
from tests.support.http_client import EventStream, HttpClient
from tests.support.upstream import FakeUpstream, Gate, Pause, Script, ending, say, text
from tests.support.waiting import Stopwatch, wait_until
from tests.wire.websocket import open_websocket

RUNS = "SELECT coalesce(sum(running), 0) FROM outlive.unstored_runs"


def chat(client: HttpClient, model: str, *, stream: bool = False) -> EventStream:
    messages = [{"role": "user", "content": "Hi"}]
    return client.open_stream("POST", "/v1/chat/completions", {"model": model, "messages": messages, "stream": stream})


def ask_unstored(client: HttpClient, kind: int, model: str) -> int:
    """Ask for something that is not stored, and read it to its end. Returns the status."""
    if kind == 0:
        return client.create(model, store=False).status
    stream = client.stream(model, store=False) if kind == 1 else chat(client, model, stream=kind == 2)
    with stream:
        stream.read_rest()
        return stream.status


class Peak:
    """A model's script, which notes how many of its calls run at once."""

    def __init__(self, upstream: FakeUpstream) -> None:
        self._upstream = upstream
        self.most = 0
        self.model = upstream.model(self._play)

    def _play(self, body: object) -> Script:
        running = sum(not call.finished for call in self._upstream.calls(self.model))
        self.most = max(self.most, running + 1)
        return [Pause(0.03), *say("done")]


def test_no_mix_of_requests_runs_more_at_once_than_an_owner_may_on_three_nodes(
    make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    cluster = make_cluster("--max-running-per-owner", "3", "--max-waiting-per-owner", "500").start(3)
    peak = Peak(upstream)
    refused = itertools.count()

    def ask(number: int) -> None:
        client, kind = cluster[number % 3].client, number % 5
        if kind == 4:
            assert client.create(peak.model).status == 200
            return
        while (status := ask_unstored(client, kind, peak.model)) != 200:
            assert status == 429
            next(refused)
            time.sleep(0.02)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(150)))
    assert len(upstream.calls(peak.model)) == 150
    assert peak.most == 3
    assert next(refused) > 0
    wait_until(lambda: cluster.sql(RUNS) == "0", "all slots are given back")
    cluster.check()


def test_runs_that_are_not_stored_count_on_all_nodes_until_their_client_is_gone(
    make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    cluster = make_cluster("--max-running-per-owner", "3").start(3)
    clients = [node.client for node in cluster.nodes]
    gate = Gate()
    held, quick = upstream.model([text("Hi "), gate, *ending()]), upstream.model(say("done"))

    def all_refuse() -> bool:
        return all(ask_unstored(client, kind, quick) == 429 for client in clients for kind in range(4))

    with ExitStack() as stack:
        socket = stack.enter_context(open_websocket(cluster[0].port))
        socket.create(model=held, input="Hi", store=False)
        socket.until("response.output_text.delta")
        stream = stack.enter_context(clients[1].stream(held, store=False))
        stream.read_type("response.output_text.delta")
        completion = stack.enter_context(chat(clients[2], held, stream=True))
        completion.read()
        assert all_refuse()
        with open_websocket(cluster[1].port) as other:
            (refusal,) = other.turn(model=quick, input="Hi", store=False)
            assert (refusal["type"], refusal["status"]) == ("error", 429)

        # A stored response is queued, and starts as soon as one of the others is gone: here a client that disconnects.
        waiting = [clients[0].submit(held)]
        assert clients[1].retrieve(waiting[0])["status"] == "queued"
        watch = Stopwatch()
        stream.close()
        wait_until(lambda: clients[1].retrieve(waiting[0])["status"] == "in_progress", "the queued response runs")
        assert watch.seconds < 10
        assert all_refuse()

        def count_running() -> int:
            return [clients[0].retrieve(each)["status"] for each in waiting].count("in_progress")

        # The same by a closed chat completion, and by a closed WebSocket. Two nodes that claim at once may take them in
        # another order.
        waiting += [clients[n].submit(held) for n in (1, 2)]
        assert count_running() == 1
        completion.close()
        wait_until(lambda: count_running() == 2, "another one runs")
        socket.connection.close()
        wait_until(lambda: count_running() == 3, "the last one runs")
        assert cluster.sql(RUNS) == "0"
        assert all_refuse()

        # A cancelled response frees its slot for one that is not stored, on any node.
        assert clients[2].cancel(waiting[0]).status == 200
        wait_until(lambda: ask_unstored(clients[0], 0, quick) == 200, "a slot is free")
        gate.open()
    cluster.check()


def test_a_killed_node_gives_back_what_it_ran_without_storing_it(
    make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    cluster = make_cluster("--max-running-per-owner", "2").start(2)
    gate = Gate()
    held, quick = upstream.model([text("Hi "), gate, *ending()]), upstream.model(say("done"))
    with cluster[0].client.stream(held, store=False) as stream, chat(cluster[0].client, held, stream=True) as other:
        stream.read_type("response.output_text.delta")
        other.read()
        assert cluster.sql(RUNS) == "2"
        queued = cluster[1].client.submit(quick)
        assert ask_unstored(cluster[1].client, 0, quick) == 429
        cluster[0].kill()
        wait_until(lambda: ask_unstored(cluster[1].client, 3, quick) == 200, "the dead node's runs do not count")
    assert cluster[1].client.wait_ended(queued)["status"] == "completed"
    wait_until(lambda: cluster.sql(RUNS) == "0", "they are removed", timeout=LEASE + 10)
    gate.open()


def test_a_node_without_its_database_counts_what_it_runs_alone(
    make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    cluster = make_cluster("--max-running-per-owner", "2")
    apart = cluster.add(proxied=True)
    cluster.start(1)
    assert apart.proxy is not None
    gate = Gate()
    held, quick = upstream.model([text("Hi "), gate, *ending()]), upstream.model(say("done"))
    with chat(cluster[1].client, held, stream=True) as first, ExitStack() as stack:
        first.read()
        apart.proxy.block()
        streams = [stack.enter_context(chat(apart.client, held, stream=True))]
        streams.append(stack.enter_context(apart.client.stream(held, store=False)))
        assert [stream.status for stream in streams] == [200, 200]
        assert ask_unstored(apart.client, 3, quick) == 429
        apart.proxy.unblock()
        wait_until(lambda: cluster.sql(RUNS) == "3", "the database knows what runs")
        gate.open()
        for stream in streams:
            stream.read_rest()
        first.read_rest()
    wait_until(lambda: cluster.sql(RUNS) == "0", "nothing runs")
    assert "counting those of this one alone" in apart.log


def test_an_owner_without_a_limit_is_not_counted_in_the_database(
    make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    cluster = make_cluster("--max-running-per-owner", "0").start(2)
    gate = Gate()
    model = upstream.model([text("Hi "), gate, *ending()])
    with cluster[0].client.stream(model, store=False) as stream:
        stream.read_type("response.output_text.delta")
        assert cluster.sql(RUNS) == "0"
        gate.open()
        stream.read_all()
