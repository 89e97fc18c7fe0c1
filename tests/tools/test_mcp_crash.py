"""kill -9 around calls of real MCP servers: finished ones are made once, unfinished ones as their tool declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.crash.checker import check_ended
from tests.crash.client import Client, Json, Stream, wait_until
from tests.support.mcp_server import McpServer
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, call, ending, say

Serve = Callable[..., OutliveServer]

SECRET = "canary-b7e0"


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, McpServer]]:
    with (
        McpServer(tmp_path_factory.mktemp("http"), "http") as http,
        McpServer(tmp_path_factory.mktemp("sse"), "sse") as sse,
    ):
        yield {"http": http, "sse": sse}


@pytest.fixture
def desk(request: pytest.FixtureRequest, desks: dict[str, McpServer]) -> McpServer:
    """One that was not asked for anything yet."""
    chosen = desks[getattr(request, "param", "http")]
    chosen.forget()
    chosen.open_gate()
    return chosen


def tools(desk: McpServer, approval: str = "never") -> list[Json]:
    entry = {"type": "mcp", "server_label": "desk", "server_url": desk.url, "require_approval": approval}
    return [{**entry, "authorization": SECRET, "headers": {"X-Team": SECRET}}]


def want(name: str, **arguments: Any) -> list[Any]:
    return [call(0, json.dumps(arguments), "call_1", name), *ending("tool_calls")]


def follow_on(client: Client, stream: Stream) -> list[bytes]:
    """All frames that a client has seen which comes back with the last number it knows."""
    with client.follow(stream.id, stream.last) as rest:
        return [*stream.frames, *rest.read_all().frames]


def find_call(response: Json) -> Json:
    (made,) = [item for item in response["output"] if item["type"] == "mcp_call"]
    return dict(made)


def assert_no_secret(server: OutliveServer, *answers: object) -> None:
    assert SECRET not in json.dumps(answers) + server.log
    for file in server.folder.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file


@pytest.mark.parametrize(
    ("point", "tool", "repeats", "status"),
    [
        ("before-call-journaled", "remember", [False], "completed"),
        # Begun and never answered: nobody knows whether it took effect, and only some tools say that this is all one.
        ("after-call-journaled", "remember", [], "failed"),
        ("after-call-journaled", "set_to", [True], "completed"),
        ("before-output-journaled", "remember", [False], "failed"),
        ("before-output-journaled", "set_to", [False, True], "completed"),
        ("after-output-journaled", "remember", [False], "completed"),
    ],
)
def test_a_call_is_made_as_often_as_its_tool_allows_wherever_the_server_is_killed(
    make_server: Serve, upstream: FakeUpstream, desk: McpServer, point: str, tool: str, repeats: list[bool], status: str
) -> None:
    arguments = {"remember": {"text": "milk"}, "set_to": {"value": "milk"}}[tool]
    asked = want(tool, **arguments)
    first_is_lost = point == "before-call-journaled"
    model = upstream.model(asked, *([asked] if first_is_lost else []), say("Done."))
    server = make_server(OUTLIVE_MCP_PRIVATE="true").start(OUTLIVE_KILL_AT=point)
    client = Client(server.port)
    with client.stream(model, tools=tools(desk)) as stream:
        stream.read_all()
        server.wait_exit()
        server.start()
        ended = check_ended(client, stream.id, follow_on(client, stream))
    assert ended["status"] == "completed"
    assert find_call(ended)["status"] == status
    assert [each["repeated"] for each in desk.named(tool)] == repeats
    assert len({each["key"] for each in desk.named(tool)}) <= 1
    assert_no_secret(server, ended)


@pytest.mark.parametrize(("desk", "tool"), [("http", "wait"), ("sse", "wait"), ("sse", "set_to")], indirect=["desk"])
def test_a_call_that_was_running_ends_or_is_repeated_as_its_tool_declares(
    make_server: Serve, upstream: FakeUpstream, desk: McpServer, tool: str
) -> None:
    desk.close_gate()
    arguments = {"wait": {"text": "tea"}, "set_to": {"value": "tea"}}[tool]
    model = upstream.model(want(tool, **arguments), say("Done."))
    server = make_server(OUTLIVE_MCP_PRIVATE="true").start()
    client = Client(server.port)
    with client.stream(model, tools=tools(desk)) as stream:
        stream.read_type("response.mcp_call.in_progress")
        wait_until(lambda: len(desk.named(tool)) == 1, "the call has come to the tool")
        server.kill()
        desk.open_gate()
        server.start()
        ended = check_ended(client, stream.id, follow_on(client, stream))
    made = find_call(ended)
    assert ended["status"] == "completed"
    assert made["status"] == ("failed" if tool == "wait" else "completed")
    assert [each["repeated"] for each in desk.named(tool)] == ([False] if tool == "wait" else [False, True])
    assert_no_secret(server, ended)


def test_between_steps_nothing_is_asked_for_twice(make_server: Serve, upstream: FakeUpstream, desk: McpServer) -> None:
    model = upstream.model(want("remember", text="milk"), want("remember", text="eggs"), say("Both."))
    server = make_server(OUTLIVE_MCP_PRIVATE="true").start(OUTLIVE_KILL_AT="between-steps:2")
    client = Client(server.port)
    with client.stream(model, tools=tools(desk)) as stream:
        stream.read_all()
        server.wait_exit()
        server.start()
        ended = check_ended(client, stream.id, follow_on(client, stream))
    assert ended["status"] == "completed"
    assert [each["value"] for each in desk.named("remember")] == ["milk", "eggs"]
    assert_no_secret(server, ended)


def test_an_approval_given_after_a_restart_continues_the_run(
    make_server: Serve, upstream: FakeUpstream, desk: McpServer
) -> None:
    model = upstream.model(want("remember", text="milk"), say("Noted."))
    server = make_server(OUTLIVE_MCP_PRIVATE="true").start()
    client = Client(server.port)
    asked = client.create(model, tools=tools(desk, "always")).body
    request = asked["output"][-1]
    assert request["type"] == "mcp_approval_request"
    server.kill()
    server.start()
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    done = client.create(model, [answer], previous_response_id=asked["id"], tools=tools(desk)).body
    assert [item["type"] for item in done["output"]] == ["mcp_call", "message"]
    assert [each["value"] for each in desk.named("remember")] == ["milk"]
    assert_no_secret(server, asked, done)
