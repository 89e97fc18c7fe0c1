"""References: a request may refer to any stored item of its owner."""

from __future__ import annotations

from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.support.http_client import HttpClient
from tests.support.upstream import FakeUpstream, call, ending, reasoning, say
from tests.wire.conftest import Servers

Json = dict[str, Any]

ASK_WEATHER = [call(0, '{"city":"Rome"}', "call_1", "weather"), *ending("tool_calls")]
TOOLS: Any = [{"type": "function", "name": "weather", "parameters": {}, "strict": False}]


def reference(item: Any) -> Any:
    return {"type": "item_reference", "id": item.id}


@pytest.mark.parametrize("stored", [True, False])
def test_item_references_replace_the_items_of_a_history(client: OpenAI, upstream: FakeUpstream, stored: bool) -> None:
    model = upstream.model([reasoning("Hm."), *say("Hello Bob")], ASK_WEATHER, say("Sunny"))
    asked: list[Any] = [{"role": "user", "content": "I am Bob"}]
    first = client.responses.create(model=model, input=asked)
    asked += [reference(item) for item in first.output] + [{"role": "user", "content": "Weather?"}]
    second = client.responses.create(model=model, input=asked, tools=TOOLS)
    asked += [
        *(reference(item) for item in second.output),
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    ]
    third = client.responses.create(model=model, input=asked, tools=TOOLS, store=stored)
    assert third.output_text == "Sunny"
    messages = upstream.calls(model)[-1].messages
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "tool"]
    assert messages[1]["content"] == "Hello Bob"
    if stored:
        kept = client.responses.input_items.list(third.id, order="asc").data
        kinds = ["message", "reasoning", "message", "message", "function_call", "function_call_output"]
        assert [item.type for item in kept] == kinds


def test_a_bare_id_is_accepted_as_a_reference(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Hello Bob"), say("Yes"))
    first = client.responses.create(model=model, input="I am Bob")
    bare: Any = [{"id": first.output[0].id}, {"role": "user", "content": "Really?"}]
    client.responses.create(model=model, input=bare)
    assert [message["content"] for message in upstream.calls(model)[-1].messages] == ["Hello Bob", "Really?"]


def test_a_reference_to_an_item_in_the_history_adds_nothing(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Hello Bob"))
    conversation = client.conversations.create().id
    first = client.responses.create(model=model, input="I am Bob", conversation=conversation)
    again: Any = [reference(first.output[0]), {"role": "user", "content": "Go on"}]
    client.responses.create(model=model, input=again, conversation=conversation)
    assert [message["content"] for message in upstream.calls(model)[-1].messages] == ["I am Bob", "Hello Bob", "Go on"]
    assert len(client.conversations.items.list(conversation).data) == 4


def test_items_of_a_conversation_can_be_referenced(client: OpenAI, upstream: FakeUpstream) -> None:
    conversation = client.conversations.create(items=[{"role": "user", "content": "Noted."}])
    (item,) = client.conversations.items.list(conversation.id).data
    model = upstream.model()
    client.responses.create(model=model, input=[reference(item)])
    assert [message["content"] for message in upstream.calls(model)[0].messages] == ["Noted."]


@pytest.mark.parametrize("stored", [True, False])
def test_an_unknown_reference_is_refused_by_name(http: HttpClient, upstream: FakeUpstream, stored: bool) -> None:
    model = upstream.model()
    given = [{"role": "user", "content": "Hi"}, {"type": "item_reference", "id": "msg_none"}]
    answer = http.create(model=model, input=given, store=stored)
    assert (answer.status, answer.error["param"]) == (404, "input[1].id")
    assert "'msg_none' not found" in answer.error["message"]
    assert upstream.calls(model) == []


def test_deleted_and_unstored_items_cannot_be_referenced(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model()
    gone = client.responses.create(model=model, input="One")
    client.responses.delete(gone.id)
    never = client.responses.create(model=model, input="Two", store=False)
    for made in (gone, never):
        with pytest.raises(NotFoundError):
            client.responses.create(model=model, input=[reference(made.output[0])])


def test_items_of_another_owner_cannot_be_referenced(servers: Servers, upstream: FakeUpstream) -> None:
    server = servers("--api-key", "ann=key-a", "--api-key", "bob=key-b")
    ann, bob = (OpenAI(base_url=server.base_url, api_key=key, max_retries=0) for key in ("key-a", "key-b"))
    model = upstream.model()
    hers = ann.responses.create(model=model, input="Mine")
    ann.responses.create(model=model, input=[reference(hers.output[0]), {"role": "user", "content": "?"}])
    with pytest.raises(NotFoundError) as refused:
        bob.responses.create(model=model, input=[reference(hers.output[0])])
    assert refused.value.param == "input[0].id"


def test_a_referenced_item_that_no_model_takes_is_refused(
    client: OpenAI, http: HttpClient, upstream: FakeUpstream
) -> None:
    item: Json = {"type": "configuration_update", "id": "cfg_for_reference", "reasoning": {"effort": "low"}}
    conversation = client.conversations.create().id
    assert http.post(f"/v1/conversations/{conversation}/items", {"items": [item]}).status == 200
    given: Any = [{"type": "item_reference", "id": item["id"]}]
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=upstream.model(), input=given)
    assert refused.value.param == "input[0].type"


@pytest.mark.parametrize("item", [{"type": "item_reference", "id": "msg_1"}, {"type": "compaction_trigger"}])
def test_references_and_triggers_are_refused_as_conversation_items(http: HttpClient, item: Json) -> None:
    answer = http.post("/v1/conversations", {"items": [item]})
    assert (answer.status, answer.error["param"]) == (400, "items[0].type")
