"""Conversations: their endpoints, the items that a turn adds, and that no turn blocks one (D6, D6b, D7, D24)."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI

from tests.support.http_client import HttpClient, Json
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, Refuse, Step, call, ending, say, text
from tests.wire import events

WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


def user(words: str, **fields: str) -> Any:
    return {"type": "message", "role": "user", "content": words, **fields}


@pytest.fixture
def conversation(client: OpenAI) -> str:
    return client.conversations.create().id


# -- endpoints


def test_a_conversation_is_created_read_changed_and_deleted(client: OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "otters"})
    assert made.id.startswith("conv_")
    assert made.to_dict() == {**made.to_dict(), "object": "conversation", "metadata": {"topic": "otters"}}
    assert client.conversations.retrieve(made.id) == made
    changed = client.conversations.update(made.id, metadata={"topic": "seals"})
    assert changed.metadata == {"topic": "seals"}
    assert client.conversations.retrieve(made.id).metadata == {"topic": "seals"}
    gone = client.conversations.delete(made.id)
    assert gone.to_dict() == {"id": made.id, "object": "conversation.deleted", "deleted": True}
    for again in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
        with pytest.raises(NotFoundError):
            again(made.id)


def test_the_async_sdk_creates_reads_changes_and_deletes_a_conversation(server: OutliveServer) -> None:
    async def run() -> None:
        async with AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0) as client:
            made = await client.conversations.create(items=[user("Hi")])
            await client.conversations.items.create(made.id, items=[user("Hello?")])
            items: Any = [item async for item in client.conversations.items.list(made.id, order="asc", limit=1)]
            assert [item.content[0].text for item in items] == ["Hi", "Hello?"]
            await client.conversations.delete(made.id)

    asyncio.run(run())


def test_created_items_get_ids_and_expanded_content(client: OpenAI, http: HttpClient) -> None:
    made = client.conversations.create(items=[user("Hi"), {"role": "assistant", "content": "Hello."}])
    data = http.get(f"/v1/conversations/{made.id}/items?order=asc").json()["data"]
    assert [item["content"][0]["type"] for item in data] == ["input_text", "output_text"]
    assert all(item["id"].startswith("msg_") and item["status"] == "completed" for item in data)


def test_items_are_added_listed_retrieved_and_deleted(client: OpenAI, conversation: str) -> None:
    added = client.conversations.items.create(conversation, items=[user("one"), user("two"), user("three")])
    assert len(added.data) == 3
    assert (added.first_id, added.last_id) == (added.data[0].id, added.data[2].id)
    second: Any = client.conversations.items.retrieve(added.data[1].id or "", conversation_id=conversation)
    assert second.content[0].text == "two"
    left = client.conversations.items.delete(second.id, conversation_id=conversation)
    assert (left.id, left.object) == (conversation, "conversation")
    rest: Any = client.conversations.items.list(conversation, order="asc").data
    assert [item.content[0].text for item in rest] == ["one", "three"]
    with pytest.raises(NotFoundError):
        client.conversations.items.retrieve(second.id, conversation_id=conversation)
    with pytest.raises(NotFoundError):
        client.conversations.items.delete(second.id, conversation_id=conversation)


def test_items_of_every_type_are_kept_unchanged(client: OpenAI, http: HttpClient, conversation: str) -> None:
    given: list[Any] = [
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "vendor_hint": {"a": 1}},
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": "xyz"},
        {"type": "acme:search_result", "hits": [1, 2]},
    ]
    client.conversations.items.create(conversation, items=given)
    kept = http.get(f"/v1/conversations/{conversation}/items?order=asc").json()["data"]
    for before, after in zip(given, kept, strict=True):
        assert before.items() <= after.items()


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 7, 20, 100])
def test_the_sdk_pages_through_items_in_both_orders(client: OpenAI, conversation: str, order: Any, limit: int) -> None:
    for start in (0, 20):
        items = [user(str(n), id=f"msg_{n}") for n in range(start, start + 20)]
        client.conversations.items.create(conversation, items=items)
    client.conversations.items.create(conversation, items=[user("40", id="msg_40")])
    listed = client.conversations.items.list(conversation, order=order, limit=limit)
    assert listed.has_more is (limit < 41)
    ids = [item.id for item in listed]
    expected = [f"msg_{n}" for n in range(41)]
    assert ids == (expected if order == "asc" else expected[::-1])


def test_a_list_has_the_newest_twenty_items_by_default(http: HttpClient, conversation: str) -> None:
    for start in (0, 20):
        items = [user(str(n), id=f"msg_{n}") for n in range(start, start + 20)]
        http.post(f"/v1/conversations/{conversation}/items", {"items": items})
    page = http.get(f"/v1/conversations/{conversation}/items").json()
    assert set(page) == {"object", "data", "first_id", "last_id", "has_more"}
    assert [page["first_id"], page["last_id"], page["has_more"]] == ["msg_39", "msg_20", True]
    rest = http.get(f"/v1/conversations/{conversation}/items?after=msg_20").json()
    assert [rest["first_id"], rest["last_id"], rest["has_more"]] == ["msg_19", "msg_0", False]
    none = http.get(f"/v1/conversations/{conversation}/items?after=msg_0").json()
    assert none == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=msg_unknown"])
def test_invalid_paging_parameters_are_refused(http: HttpClient, conversation: str, query: str) -> None:
    answer = http.get(f"/v1/conversations/{conversation}/items?{query}")
    assert answer.status == 400
    assert answer.error["param"] == query.partition("=")[0]


@pytest.mark.parametrize("path", ["", "/items"])
def test_more_than_twenty_items_in_one_request_are_refused(http: HttpClient, conversation: str, path: str) -> None:
    where = f"/v1/conversations/{conversation}{path}" if path else "/v1/conversations"
    answer = http.post(where, {"items": [user(str(n)) for n in range(21)]})
    assert answer.status == 400
    assert answer.error["param"] == "items"
    assert http.list_messages(conversation) == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": "x"}, "items"),
        ({"items": [{"type": "message", "role": "nobody", "content": "x"}]}, "items[0].role"),
        ({"items": [user("ok"), {"type": "non sense"}]}, "items[1].type"),
        ({}, "items"),
    ],
)
def test_invalid_items_are_refused_by_name_and_none_is_stored(
    http: HttpClient, conversation: str, body: Json, param: str
) -> None:
    answer = http.post(f"/v1/conversations/{conversation}/items", body)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert http.list_messages(conversation) == []


def test_a_conversation_is_created_without_items(http: HttpClient) -> None:
    assert http.post("/v1/conversations", {"items": []}).status == 200
    assert http.post("/v1/conversations").status == 200
    assert http.post("/v1/conversations", {"items": None, "metadata": None}).json()["metadata"] == {}


# -- turns


def test_a_turns_input_is_stored_at_admission_and_its_output_at_the_end(
    http: HttpClient, upstream: FakeUpstream, conversation: str
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    stream = http.stream(model=model, input="A story!", conversation=conversation)
    stream.read_through("response.created")
    assert http.list_messages(conversation) == [("user", "A story!")]
    stream.read_through("response.output_text.delta")
    assert http.list_messages(conversation) == [("user", "A story!")]
    gate.open()
    stream.read_through("response.completed")
    assert http.list_messages(conversation) == [("user", "A story!"), ("assistant", "Once upon.")]


def test_stored_output_has_the_ids_that_were_streamed(
    http: HttpClient, upstream: FakeUpstream, conversation: str
) -> None:
    with http.stream(model=upstream.model(say("Hi.")), input="Hi", conversation=conversation) as stream:
        final = events.read_all(stream.read_rest())[-1]["response"]
    assert final["conversation"] == {"id": conversation}
    items = http.get(f"/v1/conversations/{conversation}/items?order=asc").json()["data"]
    assert items[1:] == final["output"]
    own = http.get(f"/v1/responses/{final['id']}/input_items").json()["data"]
    assert items[:1] == own


@pytest.mark.parametrize("mode", [{}, {"stream": True}, {"background": True}])
def test_a_failed_turn_is_removed_and_can_be_retried(
    http: HttpClient, upstream: FakeUpstream, conversation: str, mode: Json
) -> None:
    http.create(model=upstream.model(say("Four.")), input="2+2?", conversation=conversation)
    model = upstream.model([Refuse(400)], say("Six."))
    body = {"model": model, "input": "3+3?", "conversation": conversation, **mode}
    http.post("/v1/responses", body)
    failed = http.get(f"/v1/responses?conversation={conversation}&limit=1").json()["data"][0]
    assert http.get(f"/v1/responses/{failed['id']}?wait=10").json()["status"] == "failed"
    assert http.list_messages(conversation) == [("user", "2+2?"), ("assistant", "Four.")]
    # The response itself still has its input.
    own = http.get(f"/v1/responses/{failed['id']}/input_items").json()["data"]
    assert own[0]["content"][0]["text"] == "3+3?"
    http.create(model=model, input="3+3?", conversation=conversation)
    assert [words for _, words in http.list_messages(conversation)] == ["2+2?", "Four.", "3+3?", "Six."]
    assert [message["content"] for message in upstream.calls(model)[1].messages] == ["2+2?", "Four.", "3+3?"]


def test_a_cancelled_turn_keeps_its_partial_output(http: HttpClient, upstream: FakeUpstream, conversation: str) -> None:
    stream = http.stream(model=upstream.model([text("Once "), HANG]), input="A story!", conversation=conversation)
    response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
    assert http.post(f"/v1/responses/{response_id}/cancel").json()["status"] == "cancelled"
    assert http.list_messages(conversation) == [("user", "A story!"), ("assistant", "Once ")]
    kept = http.get(f"/v1/conversations/{conversation}/items").json()["data"][0]
    assert kept["status"] == "incomplete"
    model = upstream.model(say("upon a time."))
    http.create(model=model, input="Go on.", conversation=conversation)
    assert [message["content"] for message in upstream.calls(model)[0].messages] == ["A story!", "Once ", "Go on."]


def test_an_incomplete_turn_is_kept(http: HttpClient, upstream: FakeUpstream, conversation: str) -> None:
    http.create(model=upstream.model([text("Once "), *ending("length")]), input="A story!", conversation=conversation)
    assert http.list_messages(conversation) == [("user", "A story!"), ("assistant", "Once ")]


def test_an_unstored_response_reads_the_conversation_without_its_lock(
    http: HttpClient, upstream: FakeUpstream, conversation: str
) -> None:
    http.create(model=upstream.model(say("Four.")), input="2+2?", conversation=conversation)
    gate = Gate()
    running = http.stream(model=upstream.model([gate, *say("Six.")]), input="3+3?", conversation=conversation)
    running.read_through("response.created")
    model = upstream.model(say("Eight."))
    answer = http.create(model=model, input="4+4?", conversation=conversation, store=False)
    assert answer.status == 200
    # A turn that has not ended is no part of the history.
    assert [message["content"] for message in upstream.calls(model)[0].messages] == ["2+2?", "Four.", "4+4?"]
    gate.open()
    running.read_through("response.completed")
    assert [words for _, words in http.list_messages(conversation)] == ["2+2?", "Four.", "3+3?", "Six."]


# -- never unusable


@pytest.mark.parametrize("reply", ["message", "output", "both"])
@pytest.mark.parametrize("context", ["conversation", "previous_response_id"])
def test_a_cancelled_tool_call_does_not_block_later_turns(
    http: HttpClient, upstream: FakeUpstream, conversation: str, context: str, reply: str
) -> None:
    script: list[Step] = [
        text("Let me see."),
        call(0, '{"city":"Rome"}', "call_1", "weather"),
        call(1, '{"ci', "call_2", "weather"),
        HANG,
    ]
    here = {"conversation": conversation} if context == "conversation" else {}
    stream = http.stream(model=upstream.model(script), input="Weather?", tools=[WEATHER], **here)
    frames = stream.read_through("response.function_call_arguments.delta")
    response_id = events.read(frames[0])["response"]["id"]
    stream.read_through("response.function_call_arguments.delta")
    cancelled = http.post(f"/v1/responses/{response_id}/cancel").json()
    assert cancelled["status"] == "cancelled"
    given: list[Json] = []
    if reply in ("output", "both"):
        outputs = [("call_1", "sunny"), ("call_2", "rain")]
        given += [{"type": "function_call_output", "call_id": id_, "output": said} for id_, said in outputs]
    if reply in ("message", "both"):
        given.append(user("Never mind."))
    model = upstream.model(say("All right."))
    there = here or {"previous_response_id": response_id}
    answer = http.create(model=model, input=given, tools=[WEATHER], **there)
    assert answer.status == 200, answer.body
    check_chat(upstream.calls(model)[0].messages)


def test_an_unanswered_call_gets_a_placeholder_output(
    http: HttpClient, upstream: FakeUpstream, conversation: str
) -> None:
    script = [call(0, "{}", "call_1", "weather"), *ending("tool_calls")]
    http.create(model=upstream.model(script), input="Weather?", tools=[WEATHER], conversation=conversation)
    model = upstream.model(say("Fine."))
    assert http.create(model=model, input="Never mind.", conversation=conversation).status == 200
    messages = upstream.calls(model)[0].messages
    check_chat(messages)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize("victim", ["function_call", "function_call_output"])
def test_a_deleted_half_of_a_call_does_not_block_the_conversation(
    client: OpenAI, http: HttpClient, upstream: FakeUpstream, conversation: str, victim: str
) -> None:
    given: list[Any] = [
        user("Weather?"),
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ]
    added = client.conversations.items.create(conversation, items=given)
    doomed = next(item for item in added.data if item.type == victim)
    client.conversations.items.delete(doomed.id or "", conversation_id=conversation)
    model = upstream.model(say("Fine."))
    assert http.create(model=model, input="And?", conversation=conversation).status == 200
    check_chat(upstream.calls(model)[0].messages)


def check_chat(messages: list[Json]) -> None:
    """Check what strict upstreams require: every call is followed by its output, and every output follows its call."""
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_calls
            open_calls.remove(message["tool_call_id"])
            continue
        assert not open_calls, f"{open_calls} not answered before {message}"
        open_calls = [made["id"] for made in message.get("tool_calls", [])]
    assert not open_calls
    assert all(a["role"] != b["role"] or a["role"] == "tool" for a, b in itertools.pairwise(messages))


# -- the lock


def test_a_second_run_is_refused_with_the_id_of_the_first(
    client: OpenAI, http: HttpClient, upstream: FakeUpstream, conversation: str
) -> None:
    gate = Gate()
    stream = http.stream(model=upstream.model([gate, *say("Hi.")]), input="Hi", conversation=conversation)
    running = events.read(stream.read_frame())["response"]["id"]
    added = {"items": [user("x")]}
    item = http.get(f"/v1/conversations/{conversation}/items").json()["data"][0]["id"]
    model = upstream.model()
    for answer in (
        http.create(model=model, input="Me too", conversation=conversation),
        http.create(model=model, input="Me too", conversation=conversation, background=True),
        http.post(f"/v1/conversations/{conversation}/items", added),
        http.delete(f"/v1/conversations/{conversation}/items/{item}"),
    ):
        assert answer.status == 400
        assert answer.error["code"] == "conversation_locked"
        assert running in answer.error["message"]
        assert int(answer.headers["retry-after"]) >= 1
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model, input="Me too", conversation=conversation)
    assert refused.value.code == "conversation_locked"
    assert upstream.calls(model) == []
    assert http.list_messages(conversation) == [("user", "Hi")]
    # Reading and changing the metadata need no lock.
    assert http.post(f"/v1/conversations/{conversation}", {"metadata": {"a": "b"}}).status == 200
    gate.open()
    stream.read_through("response.completed")
    assert http.create(model=model, input="Me too", conversation=conversation).status == 200


@pytest.mark.parametrize("ending_", ["completed", "failed", "cancelled", "incomplete"])
def test_every_outcome_unlocks_the_conversation(
    http: HttpClient, upstream: FakeUpstream, conversation: str, ending_: str
) -> None:
    scripts: dict[str, Any] = {
        "completed": say("Hi."),
        "failed": [Refuse(400)],
        "cancelled": [text("Hi"), HANG],
        "incomplete": [text("Hi"), *ending("length")],
    }
    stream = http.stream(model=upstream.model(scripts[ending_]), input="Hi", conversation=conversation)
    if ending_ == "cancelled":
        response_id = events.read(stream.read_through("response.output_text.delta")[0])["response"]["id"]
        http.post(f"/v1/responses/{response_id}/cancel")
    stream.read_through(f"response.{ending_}")
    assert http.create(model=upstream.model(), input="Next", conversation=conversation).status == 200


def test_a_locked_conversation_does_not_lock_others(http: HttpClient, client: OpenAI, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Hi.")])
    conversations = [client.conversations.create().id for _ in range(3)]
    streams = [http.stream(model=model, input="Hi", conversation=each) for each in conversations]
    gate.open()
    for stream in streams:
        stream.read_through("response.completed")


# -- repeats


def test_an_existing_item_is_not_added_again(http: HttpClient, conversation: str) -> None:
    path = f"/v1/conversations/{conversation}/items"
    first = http.post(path, {"items": [user("one", id="msg_1"), user("two", id="msg_2")]}).json()
    again = http.post(path, {"items": [user("two", id="msg_2"), user("three", id="msg_3")]})
    assert again.status == 200
    assert [item["id"] for item in again.json()["data"]] == ["msg_2", "msg_3"]
    assert again.json()["data"][0] == first["data"][1]
    assert [words for _, words in http.list_messages(conversation)] == ["one", "two", "three"]


def test_resending_the_whole_history_adds_no_item(http: HttpClient, upstream: FakeUpstream, conversation: str) -> None:
    """Some clients keep their own list of items and send all of it in every turn."""
    http.create(model=upstream.model(say("Four.")), input="2+2?", conversation=conversation)
    history = http.get(f"/v1/conversations/{conversation}/items?order=asc").json()["data"]
    model = upstream.model(say("Six."))
    http.create(model=model, input=[*history, user("3+3?")], conversation=conversation)
    assert [message["content"] for message in upstream.calls(model)[0].messages] == ["2+2?", "Four.", "3+3?"]
    assert [words for _, words in http.list_messages(conversation)] == ["2+2?", "Four.", "3+3?", "Six."]


def test_the_same_item_may_be_in_two_conversations(http: HttpClient, client: OpenAI) -> None:
    for conversation in (client.conversations.create().id, client.conversations.create().id):
        answer = http.post(f"/v1/conversations/{conversation}/items", {"items": [user("one", id="msg_shared")]})
        assert answer.status == 200
        assert http.list_messages(conversation) == [("user", "one")]


def test_output_items_of_an_unstored_response_are_accepted_as_input(http: HttpClient, upstream: FakeUpstream) -> None:
    script = [call(0, "{}", "call_1", "weather"), *ending("tool_calls")]
    model = upstream.model(script, say("Sunny."))
    first = http.create(model=model, input="Weather?", tools=[WEATHER], store=False).json()
    history = [user("Weather?"), *first["output"], {"type": "function_call_output", "call_id": "call_1", "output": "x"}]
    answer = http.create(model=model, input=history, tools=[WEATHER], store=False)
    assert answer.json()["output"][0]["content"][0]["text"] == "Sunny."


def test_a_turn_without_new_input_is_accepted(http: HttpClient, upstream: FakeUpstream, conversation: str) -> None:
    http.post(f"/v1/conversations/{conversation}/items", {"items": [user("2+2?")]})
    model = upstream.model(say("Four."))
    assert http.create(model=model, conversation=conversation).status == 200
    assert upstream.calls(model)[0].messages == [{"role": "user", "content": "2+2?"}]
    assert [words for _, words in http.list_messages(conversation)] == ["2+2?", "Four."]
