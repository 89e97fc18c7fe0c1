"""Tools of MCP servers where several nodes share a database: what one has begun, another takes up as declared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.checker import check_ended
from tests.crash.client import Json, wait_until
from tests.nodes.crew import Crew
from tests.support.mcp_server import McpServer
from tests.support.postgres import SHELF
from tests.support.upstream import FakeUpstream, call, ending, say

SECRET = "canary-90de5a"
KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[McpServer]:
    with McpServer(tmp_path / "desk") as running:
        yield running


def tools(desk: McpServer) -> list[Json]:
    entry = {"type": "mcp", "server_label": "desk", "server_url": desk.url, "require_approval": "never"}
    return [{**entry, "authorization": SECRET, "headers": {"X-Team": SECRET}}]


def want(name: str, **arguments: Any) -> list[Any]:
    return [call(0, json.dumps(arguments), "call_1", name), *ending("tool_calls")]


def find_call(response: Json) -> Json:
    (made,) = [item for item in response["output"] if item["type"] == "mcp_call"]
    return dict(made)


@pytest.mark.timeout(60)
def test_another_node_takes_calls_up_and_no_node_or_table_holds_a_secret(
    tmp_path: Path, upstream: FakeUpstream, desk: McpServer
) -> None:
    crew = Crew(tmp_path, upstream.url, "--mcp-private", "--log-level", "debug")
    for _ in range(2):
        crew.add().env["OUTLIVE_SEAL_KEY"] = KEY
    try:
        crew.start()
        once = upstream.model(want("wait", text="pay"), say("Done."))
        often = upstream.model(want("set_to", value="look"), say("Done."))
        ids = [crew[0].client.start(model, tools=tools(desk)) for model in (once, often)]
        wait_until(lambda: len(desk.calls) == 2, "both calls have come to their tools")
        assert find_in_database(crew, desk.url) and find_in_database(crew, SECRET) == []
        with crew[1].client.follow(ids[0]) as stream:
            crew[0].kill()
            desk.open_gate()
            stream.read_all()
        bodies = [check_ended(crew[1].client, each) for each in ids]
        assert [find_call(body)["status"] for body in bodies] == ["failed", "completed"]
        assert [each["repeated"] for each in desk.named("wait")] == [False]
        assert [each["repeated"] for each in desk.named("set_to")] == [False, True]
        assert len({each["key"] for each in desk.named("set_to")}) == 1
        assert {each["authorization"] for each in desk.calls} == {f"Bearer {SECRET}"}
        assert find_in_database(crew, SECRET) == []
        assert SECRET not in json.dumps(bodies) + crew[0].log + crew[1].log
        crew.check()
    finally:
        crew.stop()


def find_in_database(crew: Crew, text: str) -> list[str]:
    """The files of the whole cluster, its log of changes included, that hold a text."""
    crew.sql("CHECKPOINT")
    data = SHELF.cluster.data
    return [str(file) for file in data.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]
