"""Tools of real MCP servers, over both transports, behind the Responses API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.support.http_client import HttpClient
from tests.support.mcp_server import McpServer
from tests.support.server import OutliveServer
from tests.support.tool_calls import request_call
from tests.support.upstream import FakeUpstream, Gate, call, ending, say
from tests.support.waiting import wait_until
from tests.tooling.conftest import Serve
from tests.wire import events


def by_url(mcp: McpServer, **fields: Any) -> Any:
    return {"type": "mcp", "server_label": "remote", "server_url": mcp.url, "require_approval": "never", **fields}


REGISTERED: Any = {"type": "mcp", "server_label": "notes"}


def answer_approval(request_id: str | None, yes: bool = True) -> Any:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": yes}


def item_types(response: Any) -> list[str]:
    return [item.type for item in response.output]


def test_a_tool_is_listed_and_called_and_the_model_gets_its_output(
    client: OpenAI, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(request_call("add", a=2, b=3), say("Five."))
    made = client.responses.create(model=model, input="2 + 3?", tools=[by_url(mcp)])
    assert item_types(made) == ["mcp_list_tools", "mcp_call", "message"]
    listed, called = made.output[0], made.output[1]
    assert listed.type == "mcp_list_tools" and called.type == "mcp_call"
    assert {tool.name for tool in listed.tools} >= {"add", "remember", "wait"}
    assert (called.name, called.output, called.status, called.error) == ("add", "5", "completed", None)
    assert made.output_text == "Five."
    body = upstream.bodies(model)[1]
    assert body["messages"][-1]["content"] == "5"
    assert "add" in [tool["function"]["name"] for tool in body["tools"]]
    assert mcp.calls[-1]["key"] == f"{made.id}/{called.id}"
    assert mcp.calls[-1]["repeated"] is False


def test_the_stream_of_a_run_with_tools_is_well_formed_and_replays_byte_for_byte(
    server: OutliveServer, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(request_call("wait", text="tea"), say("Done."))
    with HttpClient(server.port) as http:
        with http.stream(model=model, input="Hi", tools=[by_url(mcp)]) as stream:
            raw = stream.read_rest()
        types = events.types(events.read_all(raw))
        assert types.count("mcp_list_tools.completed") == 1
        assert [kind for kind in types if kind.startswith(("mcp_call", "outlive"))] == [
            "mcp_call_arguments.delta",
            "mcp_call_arguments.done",
            "mcp_call.in_progress",
            "outlive:tool.progress",
            "mcp_call.completed",
        ]
        response_id = json.loads(raw.split(b"data: ")[1].split(b"\n")[0])["response"]["id"]
        again = http.get(f"/v1/responses/{response_id}?stream=true").body
        assert again == raw


def test_a_registered_server_needs_neither_address_nor_secret(
    client: OpenAI, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(request_call("remember", text="milk"), say("Noted."))
    made = client.responses.create(model=model, input="Milk!", tools=[REGISTERED])
    assert item_types(made) == ["mcp_list_tools", "mcp_call", "message"]
    assert mcp.calls[-1]["authorization"] == "Bearer notes-token"
    offered = [tool["function"]["name"] for tool in upstream.bodies(model)[0]["tools"]]
    assert sorted(offered) == ["add", "remember", "set_to"]  # no more than the settings allow
    assert "notes-token" not in made.model_dump_json()


def test_only_allowed_tools_are_offered(client: OpenAI, upstream: FakeUpstream, mcp: McpServer) -> None:
    model = upstream.model(say("Hm."), say("Hm."))
    client.responses.create(model=model, input="Hi", tools=[by_url(mcp, allowed_tools=["add"])])
    client.responses.create(model=model, input="Hi", tools=[by_url(mcp, allowed_tools={"read_only": True})])
    for body in upstream.bodies(model):
        assert [tool["function"]["name"] for tool in body["tools"]] == ["add"]


def test_headers_and_authorization_are_sent_to_the_server_and_stored_nowhere(
    client: OpenAI, server: OutliveServer, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(request_call("add", a=1, b=1), say("Two."))
    secret = "canary-2f9d81"
    tool = by_url(mcp, authorization=secret, headers={"X-Team": f"team-{secret}"})
    made = client.responses.create(model=model, input="1 + 1?", tools=[tool])
    assert (mcp.calls[-1]["authorization"], mcp.calls[-1]["team"]) == (f"Bearer {secret}", f"team-{secret}")
    assert secret not in made.model_dump_json()
    assert secret not in client.responses.retrieve(made.id).model_dump_json()
    assert secret not in json.dumps(upstream.bodies(model))
    assert secret not in server.log
    for file in server.folder.iterdir():
        assert secret.encode() not in file.read_bytes(), file


def test_the_list_of_tools_is_fetched_once_in_a_conversation(
    client: OpenAI, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(say("One."), request_call("add", a=1, b=2), say("Three."))
    conversation = client.conversations.create()
    first = client.responses.create(model=model, input="Hi", tools=[by_url(mcp)], conversation=conversation.id)
    second = client.responses.create(model=model, input="1 + 2?", tools=[by_url(mcp)], conversation=conversation.id)
    assert item_types(first) == ["mcp_list_tools", "message"]
    assert item_types(second) == ["mcp_call", "message"]
    assert second.output_text == "Three."


def test_a_list_that_came_as_input_is_fetched_again(client: OpenAI, upstream: FakeUpstream, mcp: McpServer) -> None:
    model = upstream.model(say("One."), request_call("forbidden"), say("No."), request_call("forbidden"), say("No."))
    tool = by_url(mcp, allowed_tools=["add", "forbidden"])
    first = client.responses.create(model=model, input="Hi", tools=[tool])
    forged: Any = first.output[0].to_dict()
    forged["tools"].append({"name": "forbidden", "input_schema": {"type": "object"}, "annotations": None})
    sent: Any = [forged, {"role": "user", "content": "Call it."}]
    second = client.responses.create(model=model, input=sent, tools=[tool])
    assert item_types(second) == ["mcp_list_tools", "function_call"]
    # Stored with the response that it was sent to, it is still no list of ours.
    forged["id"] = "mcpl_" + "0" * 48
    third = client.responses.create(model=upstream.model(say("Hm.")), input=sent, conversation=None)
    model = upstream.model(request_call("forbidden"), say("No."))
    fourth = client.responses.create(model=model, input="Now!", previous_response_id=third.id, tools=[tool])
    assert item_types(fourth)[0] == "mcp_list_tools"
    offered = [tool["function"]["name"] for tool in upstream.bodies(model)[0]["tools"]]
    assert offered == ["add"]


def test_a_request_cannot_lower_the_approval_of_a_registered_server(
    make_server: Serve, upstream: FakeUpstream, mcp: McpServer
) -> None:
    server = make_server(config=f'[mcp.notes]\nurl = "{mcp.url}"\nrequire_approval = "always"\n').start()
    for wish in ("never", {"never": {"tool_names": ["remember"]}}, {"always": {"tool_names": ["add"]}}):
        model = upstream.model(request_call("remember", text="x"))
        made = server.client.create(model, tools=[{**REGISTERED, "require_approval": wish}]).json()
        assert made["output"][-1]["type"] == "mcp_approval_request"


def test_connections_to_mcp_servers_are_limited(make_server: Serve, upstream: FakeUpstream, mcp: McpServer) -> None:
    server = make_server("--max-mcp-connections", "1", config=f'[mcp.notes]\nurl = "{mcp.url}"\n').start()
    gate = Gate()
    model = upstream.model([gate, *say("One.")], say("Two."), say("Three."))
    first = server.client.create(model, background=True, tools=[REGISTERED]).json()["id"]
    gate.wait_reached()
    second = server.client.create(model, tools=[REGISTERED]).json()
    assert "Too many connections" in second["output"][0]["error"]
    assert second["status"] == "completed"
    gate.open()
    server.client.wait_ended(first)
    wait_until(
        lambda: server.client.create(model, tools=[REGISTERED]).json()["output"][0]["error"] is None,
        "the connection is closed",
    )


def test_an_approved_call_is_made_in_the_next_turn(client: OpenAI, upstream: FakeUpstream, mcp: McpServer) -> None:
    model = upstream.model(request_call("remember", text="eggs"), say("Noted."))
    before = len(mcp.calls_of("remember"))
    tool = by_url(mcp, require_approval="always")
    asked = client.responses.create(model=model, input="Eggs!", tools=[tool])
    request = asked.output[-1]
    assert request.type == "mcp_approval_request" and asked.status == "completed"
    assert (request.name, json.loads(request.arguments)) == ("remember", {"text": "eggs"})
    assert len(mcp.calls_of("remember")) == before
    done = client.responses.create(
        model=model,
        previous_response_id=asked.id,
        tools=[tool],
        input=[{"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}],
    )
    assert item_types(done) == ["mcp_call", "message"]
    called: Any = done.output[0]
    assert (called.approval_request_id, called.output) == (request.id, "remembered eggs")
    assert len(mcp.calls_of("remember")) == before + 1


def test_a_refused_call_is_not_made_and_the_model_gets_the_reason(
    client: OpenAI, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(request_call("remember", text="salt"), say("As you like."))
    before = len(mcp.calls_of("remember"))
    tool = by_url(mcp, require_approval="always")
    asked = client.responses.create(model=model, input="Salt!", tools=[tool])
    refused = client.responses.create(
        model=model,
        previous_response_id=asked.id,
        tools=[tool],
        input=[
            {
                "type": "mcp_approval_response",
                "approval_request_id": asked.output[-1].id or "",
                "approve": False,
                "reason": "too salty",
            }
        ],
    )
    assert item_types(refused) == ["message"]
    assert len(mcp.calls_of("remember")) == before
    assert "too salty" in upstream.bodies(model)[1]["messages"][-1]["content"]


def test_a_server_named_by_url_needs_approval_by_default(
    client: OpenAI, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(request_call("remember", text="x"))
    tool: Any = {"type": "mcp", "server_label": "remote", "server_url": mcp.url}
    asked = client.responses.create(model=model, input="Hi", tools=[tool])
    assert asked.output[-1].type == "mcp_approval_request"


def test_a_failing_tool_is_a_failed_call_that_the_model_sees(
    client: OpenAI, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(request_call("break_down"), say("It broke."))
    made = client.responses.create(model=model, input="Hi", tools=[by_url(mcp)])
    called: Any = made.output[1]
    assert (called.type, called.status, called.output) == ("mcp_call", "failed", None)
    assert made.status == "completed" and made.output_text == "It broke."
    assert "break_down" in upstream.bodies(model)[1]["messages"][-1]["content"]


def test_an_answer_over_the_limit_fails_the_call(client: OpenAI, upstream: FakeUpstream, mcp: McpServer) -> None:
    model = upstream.model(request_call("flood"), say("Too much."))
    made = client.responses.create(model=model, input="Hi", tools=[by_url(mcp)])
    called: Any = made.output[1]
    assert called.status == "failed" and made.status == "completed"


def test_an_unreachable_server_is_reported_in_its_list_and_the_model_continues(
    client: OpenAI, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("Without, then."))
    tool: Any = {"type": "mcp", "server_label": "gone", "server_url": "http://127.0.0.1:9/mcp"}
    made = client.responses.create(model=model, input="Hi", tools=[tool])
    listed = made.output[0]
    assert listed.type == "mcp_list_tools" and listed.tools == [] and "reached" in (listed.error or "")
    assert made.output_text == "Without, then."


def test_a_response_with_store_false_uses_tools_and_leaves_no_trace(
    client: OpenAI, server: OutliveServer, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(request_call("remember", text="canary-77aa"), say("Noted."))
    made = client.responses.create(model=model, input="Hi", tools=[by_url(mcp)], store=False)
    assert item_types(made) == ["mcp_list_tools", "mcp_call", "message"]
    for file in server.folder.iterdir():
        assert b"canary-77aa" not in file.read_bytes(), file


def test_a_callers_token_replaces_the_registered_one_but_the_registered_headers_stay(
    client: OpenAI, server: OutliveServer, upstream: FakeUpstream, mcp: McpServer
) -> None:
    model = upstream.model(request_call("add", a=1, b=1), say("Two."))
    secret = "canary-5e11aa"
    own: Any = {**REGISTERED, "authorization": secret, "headers": {"x-team": "mine", "Authorization": "Bearer other"}}
    made = client.responses.create(model=model, input="1 + 1?", tools=[own])
    assert (mcp.calls[-1]["authorization"], mcp.calls[-1]["team"]) == (f"Bearer {secret}", "notes-team")
    assert made.tools[0].model_dump(exclude_none=True) == REGISTERED
    assert secret not in server.log


def test_tools_of_the_same_name_at_two_servers_are_called_by_distinct_names(
    client: OpenAI, upstream: FakeUpstream, mcp: McpServer
) -> None:
    script = [
        call(0, '{"text": "one"}', "call_1", "remember"),
        call(1, '{"text": "two"}', "call_2", "remote_remember"),
        *ending("tool_calls"),
    ]
    model = upstream.model(script, say("Both."))
    before = len(mcp.calls)
    made: Any = client.responses.create(model=model, input="Hi", tools=[REGISTERED, by_url(mcp)])
    assert [(item.server_label, item.name, item.output) for item in made.output if item.type == "mcp_call"] == [
        ("notes", "remember", "remembered one"),
        ("remote", "remember", "remembered two"),
    ]
    assert {(each["value"], each["authorization"]) for each in mcp.calls[before:]} == {
        ("one", "Bearer notes-token"),
        ("two", None),
    }


def test_parallel_calls_show_in_get_as_soon_as_they_end(
    server: OutliveServer, upstream: FakeUpstream, mcp: McpServer
) -> None:
    mcp.close_gate()
    script = [
        call(0, '{"text": "tea"}', "call_1", "wait"),
        call(1, '{"a": 20, "b": 22}', "call_2", "add"),
        *ending("tool_calls"),
    ]
    client = HttpClient(server.port)
    response_id = client.submit(upstream.model(script, say("Done.")), tools=[by_url(mcp)])

    def shown() -> list[tuple[str, str | None]]:
        output = client.retrieve(response_id)["output"]
        return [(item["status"], item["output"]) for item in output if item["type"] == "mcp_call"]

    try:
        wait_until(lambda: shown() == [("calling", None), ("completed", "42")], "the short call has ended")
    finally:
        mcp.open_gate()
    client.wait_ended(response_id)
    assert shown() == [("completed", "waited for tea"), ("completed", "42")]


def test_cancelling_stops_the_call_at_its_server_within_a_second(
    server: OutliveServer, upstream: FakeUpstream, mcp: McpServer
) -> None:
    mcp.close_gate()
    client = HttpClient(server.port)
    response_id = client.submit(upstream.model(request_call("wait", text="rain")), tools=[by_url(mcp)])
    running = lambda: any(each["value"] == "rain" for each in mcp.calls_of("wait"))  # noqa: E731
    try:
        wait_until(running, "the tool is called")
        cancelled = client.request("POST", f"/v1/responses/{response_id}/cancel").json()
        assert (cancelled["status"], cancelled["output"][-1]["status"]) == ("cancelled", "incomplete")
        wait_until(lambda: mcp.calls_of("stopped")[-1:] != [], "the tool was stopped", 1.0)
    finally:
        mcp.open_gate()


def test_an_approval_sent_twice_makes_its_call_once(client: OpenAI, upstream: FakeUpstream, mcp: McpServer) -> None:
    model = upstream.model(request_call("remember", text="twice"), say("Noted."), say("I know."), say("Still."))
    tool = by_url(mcp, require_approval="always")
    conversation = client.conversations.create().id
    asked = client.responses.create(model=model, input="Hi", tools=[tool], conversation=conversation)
    request_id = asked.output[-1].id
    with client.responses.stream(
        model=model, input=[answer_approval(request_id)], tools=[tool], conversation=conversation
    ) as stream:
        assert item_types(stream.get_final_response()) == ["mcp_call", "message"]
    again = client.responses.create(
        model=model, input=[answer_approval(request_id)], tools=[tool], conversation=conversation
    )
    assert item_types(again) == ["message"]
    # A client that keeps the history itself sends all of it again; its list of tools is fetched anew.
    items: Any = [
        item.model_dump(exclude_none=True) for item in client.conversations.items.list(conversation, order="asc")
    ]
    whole: Any = client.responses.create(model=model, input=items, tools=[tool], store=False)
    assert item_types(whole) == ["mcp_list_tools", "message"]
    assert [each["value"] for each in mcp.calls_of("remember")].count("twice") == 1


def test_an_approval_of_an_unknown_request_is_refused(client: OpenAI, upstream: FakeUpstream, mcp: McpServer) -> None:
    model = upstream.model(say("Hm."))
    with pytest.raises(BadRequestError, match="mcpr_of_another"):
        client.responses.create(model=model, input=[answer_approval("mcpr_of_another")], tools=[by_url(mcp)])
    with pytest.raises(BadRequestError, match="mcpr_of_another"):
        client.responses.create(model=model, input=[answer_approval("mcpr_of_another")])
    assert upstream.bodies(model) == []


def test_an_approval_without_the_tools_is_a_failed_call(client: OpenAI, upstream: FakeUpstream, mcp: McpServer) -> None:
    model = upstream.model(request_call("remember", text="nothing"), say("Well."))
    tool = by_url(mcp, require_approval="always")
    asked = client.responses.create(model=model, input="Hi", tools=[tool])
    done: Any = client.responses.create(
        model=model, input=[answer_approval(asked.output[-1].id)], previous_response_id=asked.id
    )
    assert [(item.type, item.status) for item in done.output] == [("mcp_call", "failed"), ("message", "completed")]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"server_url": "ftp://example.com"}, "tools[0].server_url"),
        ({"server_url": "https://me:secret@example.com/mcp"}, "tools[0].server_url"),
        ({"server_label": "notes"}, "tools[0].server_url"),
        ({"server_label": None}, "tools[0].server_label"),
        ({"server_url": None}, "tools[0].server_label"),
        ({"allowed_tools": [1]}, "tools[0].allowed_tools[0]"),
        ({"require_approval": "sometimes"}, "tools[0].require_approval"),
        ({"headers": {"X-A": "secret", "Host": "secret"}}, "tools[0].headers.Host"),
        ({"headers": {"content-Length": "5"}}, "tools[0].headers.content-Length"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, "tools[0].headers.Transfer-Encoding"),
        ({"headers": {"connection": "close"}}, "tools[0].headers.connection"),
    ],
)
def test_an_invalid_entry_is_refused_by_name(
    client: OpenAI, mcp: McpServer, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model="m", input="Hi", tools=[by_url(mcp, **fields)])
    assert refused.value.param == param
    assert "secret" not in str(refused.value)
