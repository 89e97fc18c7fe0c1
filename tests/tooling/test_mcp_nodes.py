"""Tools of MCP servers on several nodes with one database: another node continues as the tools declare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checks import check_ended
from tests.support.cluster import Cluster
from tests.support.http_client import Json
from tests.support.mcp_server import McpServer
from tests.support.postgres import DATABASES
from tests.support.tool_calls import find_call, request_call
from tests.support.upstream import FakeUpstream, say
from tests.support.waiting import wait_until

SECRET = "canary-90de5a"
KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def mcp(tmp_path: Path) -> Iterator[McpServer]:
    with McpServer(tmp_path / "mcp") as running:
        yield running


def tools(mcp: McpServer) -> list[Json]:
    entry = {"type": "mcp", "server_label": "notes", "server_url": mcp.url, "require_approval": "never"}
    return [{**entry, "authorization": SECRET, "headers": {"X-Team": SECRET}}]


@pytest.mark.timeout(60)
def test_another_node_continues_interrupted_calls_and_no_node_or_table_holds_a_secret(
    tmp_path: Path, upstream: FakeUpstream, mcp: McpServer
) -> None:
    crew = Cluster(tmp_path, upstream.url, "--mcp-private", "--log-level", "debug")
    for _ in range(2):
        crew.add().env["OUTLIVE_SEAL_KEY"] = KEY
    try:
        crew.start()
        once = upstream.model(request_call("wait", text="pay"), say("Done."))
        often = upstream.model(request_call("set_to", value="look"), say("Done."))
        ids = [crew[0].client.submit(model, tools=tools(mcp)) for model in (once, often)]
        wait_until(lambda: len(mcp.calls) == 2, "both tools are called")
        assert find_in_database(crew, mcp.url) and find_in_database(crew, SECRET) == []
        with crew[1].client.follow(ids[0]) as stream:
            crew[0].kill()
            mcp.open_gate()
            stream.read_all()
        bodies = [check_ended(crew[1].client, each) for each in ids]
        assert [find_call(body)["status"] for body in bodies] == ["failed", "completed"]
        assert [each["repeated"] for each in mcp.calls_of("wait")] == [False]
        assert [each["repeated"] for each in mcp.calls_of("set_to")] == [False, True]
        assert len({each["key"] for each in mcp.calls_of("set_to")}) == 1
        assert {each["authorization"] for each in mcp.calls} == {f"Bearer {SECRET}"}
        assert find_in_database(crew, SECRET) == []
        assert SECRET not in json.dumps(bodies) + crew[0].log + crew[1].log
        crew.check()
    finally:
        crew.stop()


def find_in_database(crew: Cluster, text: str) -> list[str]:
    """Return the files of the database cluster, its write-ahead log included, that hold a text."""
    crew.sql("CHECKPOINT")
    data = DATABASES.server.data
    return [str(file) for file in data.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]
