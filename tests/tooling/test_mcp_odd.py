"""MCP servers that hang, break, send too much or repeat secrets: the response still completes in time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.http_client import HttpClient, Json
from tests.support.odd_mcp import OddServer
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Script, call, ending, say

SECRET = "canary-0dd5ec"


@pytest.fixture(scope="module")
def odd() -> Iterator[OddServer]:
    with OddServer() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, upstream: FakeUpstream) -> Iterator[OutliveServer]:
    flags = ("--mcp-private", "--tool-seconds", "1.5", "--log-level", "debug")
    with OutliveServer(tmp_path_factory.mktemp("odd"), upstream.url, *flags) as running:
        yield running
        assert SECRET not in running.log and "Traceback" not in running.log


def tool(odd: OddServer, path: str, label: str = "odd", **fields: Any) -> Json:
    entry = {"type": "mcp", "server_label": label, "server_url": odd.url(path), "require_approval": "never"}
    return {**entry, "authorization": SECRET, "headers": {"X-Team": SECRET}, **fields}


def echo(body: Json) -> Script:
    """Script of a model that calls the first tool it is offered, and answers with the output."""
    outputs = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    offered = [each["function"]["name"] for each in body.get("tools") or []]
    if outputs or not offered:
        return say(outputs[-1] if outputs else "Without, then.")
    return [call(0, '{"text": "hi"}', "call_1", offered[0]), *ending("tool_calls")]


def ask(server: OutliveServer, upstream: FakeUpstream, *tools: Json, **fields: Any) -> Json:
    made = HttpClient(server.port).create(upstream.model(echo), tools=list(tools), **fields).json()
    assert made["status"] == "completed", made
    assert SECRET not in json.dumps(made)
    return made


def find(response: Json, kind: str) -> Json:
    return next(item for item in response["output"] if item["type"] == kind)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/html", "content type"),
        ("/garbage", "parse"),
        ("/elsewhere", "not followed"),
        ("/gate", "status 401"),
        ("/many", "list of tools has more than"),
    ],
)
def test_an_unusable_server_has_no_tools_and_the_list_gives_the_reason(
    server: OutliveServer, upstream: FakeUpstream, odd: OddServer, path: str, words: str
) -> None:
    listed = find(ask(server, upstream, tool(odd, path)), "mcp_list_tools")
    assert listed["tools"] == [] and words in listed["error"]


def test_several_hanging_servers_delay_a_response_once_and_the_others_are_used(
    server: OutliveServer, upstream: FakeUpstream, odd: OddServer
) -> None:
    tools = [tool(odd, path, path.strip("/")) for path in ("/hang-connect", "/hang-list", "/good")]
    began = time.monotonic()
    made = ask(server, upstream, *tools)
    assert time.monotonic() - began < 6
    lists = [item for item in made["output"] if item["type"] == "mcp_list_tools"]
    assert ["in time" in (item["error"] or "") for item in lists] == [True, True, False]
    assert find(made, "mcp_call")["output"] == "hi"


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("/hang-call", "mcp_tool_execution_error", "longer than 1.5 s"),
        ("/dead", "http_error", "may or may not"),
        ("/loud", "mcp_protocol_error", "The token Bearer *** of *** is no good."),
    ],
)
def test_a_call_without_a_usable_answer_fails_and_the_model_gets_the_reason(
    server: OutliveServer, upstream: FakeUpstream, odd: OddServer, path: str, kind: str, words: str
) -> None:
    before = odd.asked.count((path, "tools/call"))
    made = ask(server, upstream, tool(odd, path))
    error = find(made, "mcp_call")["error"]
    assert error["type"] == kind and words in json.dumps(error)
    assert words in find(made, "message")["content"][0]["text"]
    assert odd.asked.count((path, "tools/call")) == before + 1


@pytest.mark.parametrize("path", ["/moved", "/deep"])
def test_a_redirect_and_a_deep_schema_work(
    server: OutliveServer, upstream: FakeUpstream, odd: OddServer, path: str
) -> None:
    assert find(ask(server, upstream, tool(odd, path)), "mcp_call")["output"] == "hi"


@pytest.mark.parametrize(("path", "kept"), [("/image", True), ("/big-image", False)])
def test_an_image_is_kept_for_the_client_and_mentioned_to_the_model(
    server: OutliveServer, upstream: FakeUpstream, odd: OddServer, path: str, kept: bool
) -> None:
    made = ask(server, upstream, tool(odd, path))
    blocks = json.loads(find(made, "mcp_call")["output"])
    assert blocks[0] == {"type": "text", "text": "hi"}
    assert ("data" in blocks[1]) is kept
    text = find(made, "message")["content"][0]["text"]
    assert "image/png" in text and "iVBOR" not in text


def test_a_changing_list_of_tools_stays_the_same_within_a_conversation(
    server: OutliveServer, upstream: FakeUpstream, odd: OddServer
) -> None:
    conversation = HttpClient(server.port).create_conversation()
    changing = tool(odd, "/changing")
    first = ask(server, upstream, changing, conversation=conversation)
    second = ask(server, upstream, changing, conversation=conversation)
    assert [item["type"] for item in second["output"]] == ["message"]  # the first turn's output is in the context
    assert odd.lists["/changing"] == 1
    other = ask(server, upstream, changing)
    assert find(other, "mcp_call")["name"] != find(first, "mcp_call")["name"]
