"""kill -9 around calls of real MCP servers: finished calls are made once, others as their tool declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.support.checks import check_ended
from tests.support.http_client import EventStream, HttpClient, Json
from tests.support.mcp_server import McpServer
from tests.support.server import OutliveServer
from tests.support.tool_calls import find_call, request_call
from tests.support.upstream import FakeUpstream, say
from tests.support.waiting import wait_until

Serve = Callable[..., OutliveServer]

SECRET = "canary-b7e0"
ARGUMENTS = {
    "remember": {"text": "milk"},
    "set_to": {"value": "milk"},
    "wait": {"text": "milk"},
}


@pytest.fixture(scope="module")
def mcp_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, McpServer]]:
    with (
        McpServer(tmp_path_factory.mktemp("http"), "http") as http,
        McpServer(tmp_path_factory.mktemp("sse"), "sse") as sse,
    ):
        yield {"http": http, "sse": sse}


@pytest.fixture
def mcp(mcp_servers: dict[str, McpServer]) -> McpServer:
    """Give a server that has had no calls."""
    chosen = mcp_servers["http"]
    chosen.forget_calls()
    chosen.open_gate()
    return chosen


def tools(mcp: McpServer, approval: str = "never") -> list[Json]:
    entry = {"type": "mcp", "server_label": "notes", "server_url": mcp.url, "require_approval": approval}
    return [{**entry, "authorization": SECRET, "headers": {"X-Team": SECRET}}]


def read_rest(client: HttpClient, stream: EventStream) -> list[bytes]:
    """Return all frames that a client gets which reconnects with the last number it has seen."""
    with client.follow(stream.id, stream.last_number) as rest:
        return [*stream.frames, *rest.read_all().frames]


def assert_no_secret(server: OutliveServer, *answers: object) -> None:
    assert SECRET not in json.dumps(answers) + server.log
    for file in server.folder.iterdir():
        assert SECRET.encode() not in file.read_bytes(), file


class Turn:
    """A response with one call of a tool, read by a client that keeps all frames."""

    def __init__(
        self, client: HttpClient, upstream: FakeUpstream, mcp: McpServer, tool: str, asked_again: bool = False
    ) -> None:
        self.client, self.mcp, self.tool = client, mcp, tool
        asked = request_call(tool, **ARGUMENTS[tool])
        model = upstream.model(asked, *([asked] if asked_again else []), say("Done."))
        self.stream = client.stream(model, tools=tools(mcp))

    def check(self, status: str, repeats: list[bool]) -> Json:
        """Check after the restart how the response has ended, and how often the tool was called."""
        self.stream.read_all()
        ended = check_ended(self.client, self.stream.id, read_rest(self.client, self.stream))
        self.stream.close()
        assert ended["status"] == "completed"
        assert find_call(ended)["status"] == status
        made = self.mcp.calls_of(self.tool)
        assert [each["repeated"] for each in made] == repeats
        assert len({each["key"] for each in made}) <= 1
        return ended


@pytest.mark.parametrize(
    ("point", "status", "repeats"),
    [
        ("before-call-journaled", "completed", [False]),
        # Begun and without an output: the effect is unknown, so only an idempotent tool is called again.
        ("after-call-journaled:2", "failed", []),
        ("before-output-journaled", "failed", [False]),
        ("after-output-journaled", "completed", [False]),
    ],
)
def test_a_call_is_repeated_only_if_its_tool_allows_it_wherever_the_server_is_killed(
    make_server: Serve, upstream: FakeUpstream, mcp: McpServer, point: str, status: str, repeats: list[bool]
) -> None:
    mcp.close_gate()
    server = make_server(OUTLIVE_MCP_PRIVATE="true").start(OUTLIVE_KILL_AT=point)
    client = HttpClient(server.port)
    turns = []
    if status == "failed":  # a call of an idempotent tool runs at the same time
        turns.append(Turn(client, upstream, mcp, "set_to"))
        wait_until(lambda: len(mcp.calls) == 1, "the tool is called")
    turns.append(Turn(client, upstream, mcp, "remember", point == "before-call-journaled"))
    for turn in turns:
        turn.stream.read_all()
    server.wait_exit()
    mcp.open_gate()
    server.start()
    ended = [turns[-1].check(status, repeats), *(turn.check("completed", [False, True]) for turn in turns[:-1])]
    assert_no_secret(server, ended)


def test_interrupted_calls_fail_or_are_repeated_as_their_tools_declare(
    make_server: Serve, upstream: FakeUpstream, mcp_servers: dict[str, McpServer]
) -> None:
    for mcp in mcp_servers.values():
        mcp.forget_calls()
        mcp.close_gate()
    server = make_server(OUTLIVE_MCP_PRIVATE="true").start()
    client = HttpClient(server.port)
    turns = [Turn(client, upstream, mcp, tool) for mcp in mcp_servers.values() for tool in ("wait", "set_to")]
    wait_until(lambda: all(len(mcp.calls) == 2 for mcp in mcp_servers.values()), "the tools are called")
    server.kill()
    for mcp in mcp_servers.values():
        mcp.open_gate()
    server.start()
    ended = [
        turn.check("failed", [False]) if turn.tool == "wait" else turn.check("completed", [False, True])
        for turn in turns
    ]
    assert_no_secret(server, ended)


def test_a_draining_server_releases_its_calls(make_server: Serve, upstream: FakeUpstream, mcp: McpServer) -> None:
    mcp.close_gate()
    server = make_server("--grace-seconds", "0.3", OUTLIVE_MCP_PRIVATE="true").start()
    turns = [Turn(HttpClient(server.port), upstream, mcp, tool) for tool in ("wait", "set_to")]
    wait_until(lambda: len(mcp.calls) == 2, "the tools are called")
    assert server.terminate() == 0
    wait_until(lambda: len(mcp.calls_of("stopped")) == 1, "the call was cancelled at its server")
    mcp.open_gate()
    server.start()
    ended = [turns[0].check("failed", [False]), turns[1].check("completed", [False, True])]
    assert_no_secret(server, ended)


def test_a_kill_between_steps_repeats_no_call(make_server: Serve, upstream: FakeUpstream, mcp: McpServer) -> None:
    model = upstream.model(request_call("remember", text="milk"), request_call("remember", text="eggs"), say("Both."))
    server = make_server(OUTLIVE_MCP_PRIVATE="true").start(OUTLIVE_KILL_AT="between-steps:2")
    client = HttpClient(server.port)
    with client.stream(model, tools=tools(mcp)) as stream:
        stream.read_all()
        server.wait_exit()
        server.start()
        ended = check_ended(client, stream.id, read_rest(client, stream))
    assert ended["status"] == "completed"
    assert [each["value"] for each in mcp.calls_of("remember")] == ["milk", "eggs"]
    assert_no_secret(server, ended)


def test_an_approval_given_after_a_restart_continues_the_run(
    make_server: Serve, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(request_call("remember", text="milk"), say("Noted."))
    server = make_server(OUTLIVE_MCP_PRIVATE="true").start()
    client = HttpClient(server.port)
    asked = client.create(model, tools=tools(mcp, "always")).json()
    request = asked["output"][-1]
    assert request["type"] == "mcp_approval_request"
    server.kill()
    server.start()
    answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    done = client.create(model, input=[answer], previous_response_id=asked["id"], tools=tools(mcp)).json()
    assert [item["type"] for item in done["output"]] == ["mcp_call", "message"]
    assert [each["value"] for each in mcp.calls_of("remember")] == ["milk"]
    assert_no_secret(server, asked, done)
