"""A key of the database is valid on every node, and void on every node once it is revoked."""

from __future__ import annotations

import json
import time

from typer.testing import CliRunner

from outlive.cli import app
from tests.nodes.conftest import MakeCluster
from tests.support.http_client import HttpClient
from tests.support.upstream import HANG, FakeUpstream, text


def test_a_revoked_key_is_refused_on_three_nodes_within_a_second(
    make_cluster: MakeCluster, upstream: FakeUpstream
) -> None:
    cluster = make_cluster("--require-keys").start(3)
    database = ("--database", cluster.nodes[0].database_url)
    made = CliRunner().invoke(app, ["keys", "new", "--owner", "anna", "--json", *database])
    assert made.exit_code == 0, made.output
    key = json.loads(made.stdout)
    time.sleep(1.0)
    clients = [HttpClient(node.port, key["key"]) for node in cluster.nodes]
    assert [client.get("/v1/models").status for client in clients] == [200] * 3
    response_id = clients[0].submit(upstream.model([text("Once "), HANG]))
    streams = [client.follow(response_id) for client in clients]
    for stream in streams:
        stream.read_delta("Once ")
    assert CliRunner().invoke(app, ["keys", "revoke", key["id"], *database]).exit_code == 0
    for stream in streams:
        assert stream.read() is None and stream.cut
    time.sleep(1.0)
    assert [client.get("/v1/models").status for client in clients] == [401] * 3
    for stream in streams:
        stream.close()
