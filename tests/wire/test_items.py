"""Items that callers send: what is stored can be sent, and nothing vanishes without a word (D25)."""

from __future__ import annotations

from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from tests.support.http_client import HttpClient
from tests.support.upstream import FakeUpstream, Script, call, ending, say

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}
ONE_CALL: Script = [call(0, "{}", "call_1", "weather"), *ending("tool_calls")]
OUTPUT: Any = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("as_added", ["in_progress", "incomplete"])
def test_a_call_collected_from_the_stream_is_sent_with_its_output(
    client: OpenAI, upstream: FakeUpstream, store: bool, as_added: str
) -> None:
    """As OpenAI's guide to function calling collects calls: the item of `output_item.added`, with its deltas added."""
    model = upstream.model(ONE_CALL, say("Sunny."))
    collected: Any = {}
    for event in client.responses.create(model=model, input="Weather?", tools=[WEATHER], stream=True, store=store):
        if event.type == "response.output_item.added":
            collected = event.item.to_dict()
        elif event.type == "response.function_call_arguments.delta":
            collected["arguments"] += event.delta
    assert collected["status"] == "in_progress"
    asked: Any = [{"role": "user", "content": "Weather?"}, {**collected, "status": as_added}, OUTPUT]
    assert client.responses.create(model=model, input=asked, tools=[WEATHER], store=store).output_text == "Sunny."
    messages = upstream.calls(model)[1].messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[2]["content"] == "sunny"


def test_an_output_that_comes_late_is_what_the_model_answers(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(ONE_CALL, say("I wait for it."), say("It is sunny."))
    conversation = client.conversations.create().id

    def ask(input: Any) -> str:
        made = client.responses.create(model=model, input=input, tools=[WEATHER], conversation=conversation)
        return made.output_text

    ask("Weather?")
    assert ask("And?") == "I wait for it."
    assert ask([OUTPUT]) == "It is sunny."
    messages = upstream.calls(model)[2].messages
    roles = [message["role"] for message in messages]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "tool"]
    assert messages[-2]["content"] == "I wait for it."
    assert messages[-2]["tool_calls"][0]["id"] == messages[-1]["tool_call_id"] == "call_1"
    assert messages[-1]["content"] == "sunny"


@pytest.mark.parametrize("store", [True, False])
def test_an_output_of_no_call_is_refused_where_nothing_came_before(
    client: OpenAI, upstream: FakeUpstream, store: bool
) -> None:
    model, question = upstream.model(say("Hi.")), {"role": "user", "content": "Weather?"}
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model, input=[question, OUTPUT], store=store)  # type: ignore[list-item]
    assert (refused.value.param, upstream.calls(model)) == ("input[1].call_id", [])
    compaction = client.responses.compact(model=model, input=[question]).output[-1].model_dump(exclude_none=True)  # type: ignore[list-item]
    made = client.responses.create(model=model, input=[compaction, OUTPUT, question], store=store)  # type: ignore[list-item]
    assert made.output_text == "Hi."  # the call may have been among what was compacted
    # Its call may have been cut off earlier: then the conversation must go on (D6b).
    conversation = client.conversations.create().id
    made = client.responses.create(model=model, input=[OUTPUT], conversation=conversation, store=store)
    assert made.output_text == "Hi."


ODD_ITEMS: list[tuple[Any, str]] = [
    ({"type": "mcp_approval_response", "approve": True}, "items[0].approval_request_id"),
    (
        {"type": "mcp_approval_response", "approve": True, "approval_request_id": 5},
        "items[0].approval_request_id",
    ),
    ({"type": "shell_call_output", "call_id": "c", "output": [{"type": "output_text"}]}, "items[0].output[0].text"),
    (
        {"type": "apply_patch_call_output", "call_id": "c", "output": [{"type": "input_text", "text": 5}]},
        "items[0].output[0].text",
    ),
    ({"type": "computer_call_output", "call_id": "c", "output": [{"type": ["x"]}]}, "items[0].output[0].type"),
    ({"type": "tool_search_output", "call_id": ["c"]}, "items[0].call_id"),
]


@pytest.mark.parametrize(("item", "param"), ODD_ITEMS)
def test_an_item_that_could_not_be_read_later_is_refused_and_the_conversation_answers(
    client: OpenAI, item: Any, param: str
) -> None:
    conversation = client.conversations.create().id
    with pytest.raises(BadRequestError) as refused:
        client.conversations.items.create(conversation, items=[item])
    assert refused.value.param == param
    assert client.responses.create(model="any", input="Hi", conversation=conversation).status == "completed"


@pytest.mark.parametrize("field", ["file_url", "file_id"])
def test_a_file_that_no_upstream_can_be_sent_is_refused_when_it_is_added(
    client: OpenAI, http: HttpClient, field: str
) -> None:
    file = {"type": "input_file", field: "https://example.test/a.pdf"}
    item: Any = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "See:"}, file]}
    conversation = client.conversations.create().id
    with pytest.raises(BadRequestError) as refused:
        client.conversations.items.create(conversation, items=[{"role": "user", "content": "Hi"}, item])
    assert refused.value.param == f"items[1].content[1].{field}"
    with pytest.raises(BadRequestError) as refused:
        client.conversations.create(items=[item])
    assert refused.value.param == f"items[0].content[1].{field}"
    assert client.conversations.items.list(conversation).data == []
