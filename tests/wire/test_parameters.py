"""Parameters that select output, tools and stored items."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from openai import BadRequestError, OpenAI

from outlive.core.requests.create import Includable
from tests.support.http_client import HttpClient
from tests.support.upstream import FakeUpstream, chunk, ending, say
from tests.wire.events import read_all

Json = dict[str, Any]


def function(name: str) -> Any:
    return {"type": "function", "name": name, "parameters": {}, "strict": False}


# -- include


def test_every_include_value_is_accepted_everywhere(http: HttpClient, upstream: FakeUpstream) -> None:
    made = http.create(model=upstream.model(), input="Hi", include=list(get_args(Includable)))
    assert made.status == 200
    query = "&".join(f"include[]={name}" for name in get_args(Includable))
    for path in (f"/v1/responses/{made.json()['id']}", f"/v1/responses/{made.json()['id']}/input_items"):
        plain, included = http.get(path), http.get(f"{path}?{query}")
        assert included.json() == plain.json()


def test_an_unknown_include_value_is_refused_by_name(http: HttpClient, upstream: FakeUpstream) -> None:
    answer = http.create(model=upstream.model(), input="Hi", include=["reasoning.encrypted_content", "everything"])
    assert (answer.status, answer.error["param"]) == (400, "include[1]")


def test_images_are_returned_without_an_include_value(client: OpenAI, upstream: FakeUpstream) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}
    made = client.responses.create(model=upstream.model(), input=[{"role": "user", "content": [picture]}])  # type: ignore[list-item,misc]
    kept: Any = client.responses.input_items.list(made.id).data[0]
    assert kept.content[0].image_url == picture["image_url"]


# -- log probabilities


def with_logprobs(piece: str, *tokens: str) -> Json:
    entries = [
        {"token": token, "logprob": -0.5, "top_logprobs": [{"token": token, "logprob": -0.5, "bytes": [1]}]}
        for token in tokens
    ]
    made = chunk({"content": piece})
    made["choices"][0]["logprobs"] = {"content": entries}
    return made


def test_logprobs_are_streamed_and_stored_with_the_text(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([with_logprobs("Hello", "Hel", "lo"), with_logprobs(" you", " you"), *ending()], say("Yes"))
    asked: Json = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    with http.stream(model=model, input="Hi", **asked) as stream:
        raw = stream.read_rest()
    events = read_all(raw)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [[entry["token"] for entry in delta["logprobs"]] for delta in deltas] == [["Hel", "lo"], [" you"]]
    (done,) = [event for event in events if event["type"] == "response.output_text.done"]
    assert len(done["logprobs"]) == 3
    part = events[-1]["response"]["output"][0]["content"][0]
    assert [entry["token"] for entry in part["logprobs"]] == ["Hel", "lo", " you"]
    assert part["logprobs"][0]["bytes"] == [72, 101, 108]
    # It is journaled, so that a replay has it, too.
    response_id = events[-1]["response"]["id"]
    with http.follow(response_id) as stream:
        assert stream.read_rest() == raw
    assert http.get(f"/v1/responses/{response_id}").json()["output"][0]["content"][0] == part
    # They are not sent back to the model.
    http.create(model=model, input="Sure?", previous_response_id=response_id)
    assert upstream.calls(model)[1].messages[1] == {"role": "assistant", "content": "Hello you"}
    assert upstream.calls(model)[0].body["logprobs"] is True


def test_logprobs_are_requested_only_where_they_are_included(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([with_logprobs("Hello", "Hello"), *ending()])
    made = http.create(model=model, input="Hi", top_logprobs=0).json()
    assert made["output"][0]["content"][0]["logprobs"] == []
    assert "logprobs" not in upstream.calls(model)[0].body


# -- tools


def test_only_allowed_tools_are_sent_to_the_model(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model()
    tools = [function("one"), function("two"), {"type": "custom", "name": "three"}]
    choice: Any = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "two"}, {"type": "custom", "name": "three"}],
    }
    made = client.responses.create(model=model, input="Hi", tools=tools, tool_choice=choice)
    body = upstream.calls(model)[0].body
    assert [tool["function"]["name"] for tool in body["tools"]] == ["two", "three"]
    assert body["tool_choice"] == "required"
    # The response still echoes the request.
    assert len(made.tools) == 3
    assert made.tool_choice.model_dump() == choice  # type: ignore[union-attr]


def test_max_tool_calls_is_echoed_and_validated(client: OpenAI, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model(), input="Hi", max_tool_calls=3)
    assert made.max_tool_calls == 3
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=upstream.model(), input="Hi", max_tool_calls=0)
    assert refused.value.param == "max_tool_calls"


# -- items of every type

KEPT: list[Json] = [
    {"type": "file_search_call", "id": "fs_1", "queries": ["q"], "status": "completed", "results": None},
    {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "q"}, "status": "completed"},
    {
        "type": "code_interpreter_call",
        "id": "ci_1",
        "code": "1",
        "container_id": "c",
        "outputs": [],
        "status": "completed",
    },
    {"type": "image_generation_call", "id": "ig_1", "result": "AAAA", "status": "completed"},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "s", "tools": []},
    {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "s", "name": "f", "arguments": "{}"},
    {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False},
    {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "c1",
        "action": {"type": "wait"},
        "pending_safety_checks": [],
        "status": "completed",
    },
    {"type": "local_shell_call", "id": "sh_1", "call_id": "c2", "action": {"type": "exec"}, "status": "completed"},
    {"type": "shell_call", "id": "shc_1", "call_id": "c3", "action": {"commands": ["ls"]}, "status": "completed"},
    {"type": "apply_patch_call", "id": "apc_1", "call_id": "c4", "operation": {}, "status": "completed"},
    {"type": "tool_search_call", "id": "ts_1", "arguments": {}, "execution": "client"},
    {"type": "program", "id": "prog_1", "call_id": "c5", "code": "1", "fingerprint": "f"},
    {"type": "additional_tools", "role": "developer", "tools": []},
    {"type": "configuration_update", "reasoning": {"effort": "low"}},
    {"type": "compaction", "encrypted_content": "made elsewhere"},
    {"type": "acme:search_result", "anything": {"a": [None, 1.5]}},
    {"type": "a_kind_of_next_year", "anything": {"a": [None, 1.5]}},
]


@pytest.mark.parametrize("item", KEPT, ids=lambda item: item["type"])
def test_every_item_type_is_kept_unchanged_and_blocks_no_turn(
    http: HttpClient, upstream: FakeUpstream, item: Json
) -> None:
    made = http.post("/v1/conversations", {"items": [{"role": "user", "content": "Hi"}, item]})
    assert made.status == 200
    conversation = made.json()["id"]
    kept = http.get(f"/v1/conversations/{conversation}/items?order=asc").json()["data"][1]
    assert kept | item == kept
    model = upstream.model()
    answered = http.create(model=model, input="So?", conversation=conversation)
    assert (answered.status, answered.json()["status"]) == (200, "completed")
    assert upstream.calls(model)[0].messages[0]["role"] == "user"


@pytest.mark.parametrize("kind", ["configuration_update", "a_kind_of_next_year", "compaction"])
def test_item_types_that_no_model_takes_are_refused_in_a_request(
    http: HttpClient, upstream: FakeUpstream, kind: str
) -> None:
    given = [{"role": "user", "content": "Hi"}, {"type": kind, "encrypted_content": "made elsewhere"}]
    answer = http.create(model=upstream.model(), input=given)
    assert (answer.status, answer.error["param"]) == (400, "input[1].type")
    assert kind in answer.error["message"]
