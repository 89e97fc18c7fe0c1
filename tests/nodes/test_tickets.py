"""A ticket of one node is valid on every node, and revoking it on one cuts its streams on all."""

from __future__ import annotations

from tests.support.cluster import Cluster
from tests.support.upstream import FakeUpstream, Gate, ending, text
from tests.support.waiting import Stopwatch


def test_a_ticket_is_valid_on_every_node_until_one_revokes_it(three_nodes: Cluster, upstream: FakeUpstream) -> None:
    gate = Gate()
    clients = [node.client for node in three_nodes.nodes]
    conversation = clients[0].create_conversation()
    response_id = clients[0].submit(upstream.model([text("Once "), gate, *ending()]), conversation=conversation)
    made = clients[1].post(f"/v1/conversations/{conversation}/tickets", {"expires_in": 600}).json()
    query = f"?stream=true&ticket={made['ticket']}"
    streams = [client.open_stream("GET", f"/v1/responses/{response_id}{query}") for client in clients]
    for stream in streams:
        stream.read_delta("Once ")
    watch = Stopwatch()
    assert clients[2].delete(f"/v1/conversations/{conversation}/tickets/{made['id']}").status == 200
    for stream in streams:
        assert stream.read() is None and stream.cut
        stream.close()
    assert watch.seconds < 5
    assert [client.get(f"/v1/responses/{response_id}{query}").status for client in clients] == [401] * 3
    gate.open()
    assert clients[0].wait_ended(response_id)["status"] == "completed"
