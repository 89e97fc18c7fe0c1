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
ARGUMENTS = {
    "remember": {"text": "milk"},
    "set_to": {"value": "milk"},
    "wait": {"text": "milk"},
}


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, McpServer]]:
    with (
        McpServer(tmp_path_factory.mktemp("http"), "http") as http,
        McpServer(tmp_path_factory.mktemp("sse"), "sse") as sse,
    ):
        yield {"http": http, "sse": sse}


@pytest.fixture
def desk(desks: dict[str, McpServer]) -> McpServer:
    """One that was not asked for anything yet."""
    chosen = desks["http"]
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


class Turn:
    """A response with one call of a tool, read by a client that keeps what it sees."""

    def __init__(
        self, client: Client, upstream: FakeUpstream, desk: McpServer, tool: str, asked_again: bool = False
    ) -> None:
        self.client, self.desk, self.tool = client, desk, tool
        asked = want(tool, **ARGUMENTS[tool])
        model = upstream.model(asked, *([asked] if asked_again else []), say("Done."))
        self.stream = client.stream(model, tools=tools(desk))

    def check(self, status: str, repeats: list[bool]) -> Json:
        """How it has ended once the server is back, and how often the tool was called."""
        self.stream.read_all()
        ended = check_ended(self.client, self.stream.id, follow_on(self.client, self.stream))
        self.stream.close()
        assert ended["status"] == "completed"
        assert find_call(ended)["status"] == status
        made = self.desk.named(self.tool)
        assert [each["repeated"] for each in made] == repeats
        assert len({each["key"] for each in made}) <= 1
        return ended


@pytest.mark.parametrize(
    ("point", "status", "repeats"),
    [
        ("before-call-journaled", "completed", [False]),
        # Begun and never answered: nobody knows whether it took effect, and only some tools say that this is all one.
        ("after-call-journaled:2", "failed", []),
        ("before-output-journaled", "failed", [False]),
        ("after-output-journaled", "completed", [False]),
    ],
)
def test_a_call_is_made_as_often_as_its_tool_allows_wherever_the_server_is_killed(
    make_server: Serve, upstream: FakeUpstream, desk: McpServer, point: str, status: str, repeats: list[bool]
) -> None:
    desk.close_gate()
    server = make_server(OUTLIVE_MCP_PRIVATE="true").start(OUTLIVE_KILL_AT=point)
    client = Client(server.port)
    turns = []
    if status == "failed":  # beside it, one that may be repeated is under way
        turns.append(Turn(client, upstream, desk, "set_to"))
        wait_until(lambda: len(desk.calls) == 1, "the call has come to its tool")
    turns.append(Turn(client, upstream, desk, "remember", point == "before-call-journaled"))
    for turn in turns:
        turn.stream.read_all()
    server.wait_exit()
    desk.open_gate()
    server.start()
    ended = [turns[-1].check(status, repeats), *(turn.check("completed", [False, True]) for turn in turns[:-1])]
    assert_no_secret(server, ended)


def test_calls_that_were_running_end_or_are_repeated_as_their_tools_declare(
    make_server: Serve, upstream: FakeUpstream, desks: dict[str, McpServer]
) -> None:
    for desk in desks.values():
        desk.forget()
        desk.close_gate()
    server = make_server(OUTLIVE_MCP_PRIVATE="true").start()
    client = Client(server.port)
    turns = [Turn(client, upstream, desk, tool) for desk in desks.values() for tool in ("wait", "set_to")]
    wait_until(lambda: all(len(desk.calls) == 2 for desk in desks.values()), "the calls have come to their tools")
    server.kill()
    for desk in desks.values():
        desk.open_gate()
    server.start()
    ended = [
        turn.check("failed", [False]) if turn.tool == "wait" else turn.check("completed", [False, True])
        for turn in turns
    ]
    assert_no_secret(server, ended)


def test_a_server_that_is_asked_to_leave_hands_its_calls_on(
    make_server: Serve, upstream: FakeUpstream, desk: McpServer
) -> None:
    desk.close_gate()
    server = make_server("--grace-seconds", "0.3", OUTLIVE_MCP_PRIVATE="true").start()
    turns = [Turn(Client(server.port), upstream, desk, tool) for tool in ("wait", "set_to")]
    wait_until(lambda: len(desk.calls) == 2, "the calls have come to their tools")
    assert server.terminate() == 0
    wait_until(lambda: len(desk.named("stopped")) == 1, "the call was stopped at its server, too")
    desk.open_gate()
    server.start()
    ended = [turns[0].check("failed", [False]), turns[1].check("completed", [False, True])]
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
