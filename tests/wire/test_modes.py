"""All combinations of modes: plain, streamed and background; stored or not; in a conversation, a chain, or neither."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response

from tests.support.http_client import HttpClient, Json
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, say
from tests.wire import events

MODES: dict[str, Json] = {
    "plain": {},
    "stream": {"stream": True},
    "background": {"background": True},
    "background_stream": {"background": True, "stream": True},
}
CONTEXTS = ("conversation", "previous_response_id", "neither")


class Received:
    """The outcome for a client: the events, if it streamed, and the ended response."""

    def __init__(self, final: Json, streamed: list[Json] | None) -> None:
        self.final = final
        self.streamed = streamed


class SyncSdk:
    def __init__(self, base_url: str) -> None:
        self._base_url = base_url

    def create(self, **body: Any) -> Received:
        with OpenAI(base_url=self._base_url, api_key="any", max_retries=0) as client:
            made: Any = client.responses.create(**body)
            if body.get("stream"):
                streamed = [event.to_dict(mode="json") for event in made]
                return Received(streamed[-1]["response"], streamed)
            assert isinstance(made, Response)
            if body.get("background"):
                assert made.status == "queued"
                made = client.responses.retrieve(made.id, extra_query={"wait": 20})
            return Received(made.to_dict(mode="json"), None)


class AsyncSdk:
    def __init__(self, base_url: str) -> None:
        self._base_url = base_url

    def create(self, **body: Any) -> Received:
        return asyncio.run(self._create(body))

    async def _create(self, body: Json) -> Received:
        async with AsyncOpenAI(base_url=self._base_url, api_key="any", max_retries=0) as client:
            made: Any = await client.responses.create(**body)
            if body.get("stream"):
                streamed = [event.to_dict(mode="json") async for event in made]
                return Received(streamed[-1]["response"], streamed)
            assert isinstance(made, Response)
            if body.get("background"):
                assert made.status == "queued"
                made = await client.responses.retrieve(made.id, extra_query={"wait": 20})
            return Received(made.to_dict(mode="json"), None)


@pytest.fixture(params=[SyncSdk, AsyncSdk], ids=["sync", "async"])
def sdk(request: pytest.FixtureRequest, server: OutliveServer) -> Any:
    return request.param(server.base_url)


def begin(client: OpenAI, upstream: FakeUpstream, context: str) -> Json:
    """Create an earlier turn and return the field that continues it."""
    model = upstream.model(say("Four."))
    if context == "conversation":
        conversation = client.conversations.create()
        client.responses.create(model=model, input="What is 2+2?", conversation=conversation.id)
        return {"conversation": conversation.id}
    if context == "previous_response_id":
        return {"previous_response_id": client.responses.create(model=model, input="What is 2+2?").id}
    return {}


EARLIER = [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "Four."}]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("store", [True, False], ids=["stored", "not_stored"])
@pytest.mark.parametrize("mode", MODES)
def test_every_combination_of_modes_works_or_is_refused(
    sdk: Any, client: OpenAI, http: HttpClient, upstream: FakeUpstream, mode: str, store: bool, context: str
) -> None:
    earlier = begin(client, upstream, context)
    model = upstream.model(say("And ", "3+3 ", "is six."))
    before = items_of(client, earlier)

    if MODES[mode].get("background") and not store:
        with pytest.raises(BadRequestError) as refused:
            sdk.create(model=model, input="And 3+3?", store=store, **MODES[mode], **earlier)
        assert refused.value.param == "store"
        assert "stored" in refused.value.message
        assert upstream.calls(model) == []
        assert items_of(client, earlier) == before
        return

    received = sdk.create(model=model, input="And 3+3?", store=store, **MODES[mode], **earlier)

    assert received.final["status"] == "completed"
    assert received.final["output"][0]["content"][0]["text"] == "And 3+3 is six."
    assert received.final["store"] is store
    assert received.final["background"] is MODES[mode].get("background", False)
    assert received.final["usage"]["total_tokens"] == 7
    events.check_response(received.final)
    if received.streamed is not None:
        events.check(received.streamed)
        opening = ["created", "queued", "in_progress"] if MODES[mode].get("background") else ["created", "in_progress"]
        assert events.types(received.streamed)[: len(opening)] == opening
        assert events.text_of(received.streamed) == "And 3+3 is six."

    asked = upstream.calls(model)
    assert len(asked) == 1
    assert asked[0].messages == [*(EARLIER if earlier else []), {"role": "user", "content": "And 3+3?"}]

    found = http.get(f"/v1/responses/{received.final['id']}")
    if store:
        assert found.json() == wire_form(found.json(), received.final)
        assert found.headers.get("openai-poll-after-ms") is None
        assert items_of(client, earlier) == before + (
            ["And 3+3?", "And 3+3 is six."] if "conversation" in earlier else []
        )
    else:
        assert found.status == 404
        assert items_of(client, earlier) == before


def items_of(client: OpenAI, earlier: Json) -> list[str]:
    if "conversation" not in earlier:
        return []
    items: Any = client.conversations.items.list(earlier["conversation"], order="asc")
    return [item.content[0].text for item in items]


def wire_form(found: Json, received: Json) -> Json:
    """Return the object that the SDK read, without the null fields that its classes add."""
    return {name: value for name, value in received.items() if name in found or value is not None}


@pytest.mark.parametrize("mode", ["plain", "stream"])
@pytest.mark.parametrize("path", ["", "/cancel", "/input_items"])
def test_an_unstored_response_is_not_found(
    client: OpenAI, http: HttpClient, upstream: FakeUpstream, mode: str, path: str
) -> None:
    model = upstream.model(say("Gone."))
    received = SyncSdk(str(client.base_url)).create(model=model, input="Hi", store=False, **MODES[mode])
    method = "POST" if path == "/cancel" else "GET"
    answer = http.request(method, f"/v1/responses/{received.final['id']}{path}")
    assert answer.status == 404
    assert answer.error["type"] == "invalid_request_error"
    assert http.delete(f"/v1/responses/{received.final['id']}").status == 404
    assert received.final["id"] not in http.get("/v1/responses?limit=100").body.decode()


def test_an_unstored_response_is_refused_as_a_parent(client: OpenAI, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model(say("Gone.")), input="Hi", store=False)
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=upstream.model(), input="And?", previous_response_id=made.id)
    assert refused.value.code == "previous_response_not_found"


def test_an_idempotency_key_with_store_false_is_refused(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model()
    answer = http.post("/v1/responses", {"model": model, "input": "Hi", "store": False}, idempotency_key="k1")
    assert answer.status == 400
    assert answer.error["param"] == "Idempotency-Key"
    assert upstream.calls(model) == []


def test_a_conversation_with_a_parent_is_refused(client: OpenAI, upstream: FakeUpstream) -> None:
    conversation = client.conversations.create()
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(
            model=upstream.model(), input="Hi", conversation=conversation.id, previous_response_id="resp_1"
        )
    assert refused.value.param == "previous_response_id"


@pytest.mark.parametrize("store", [True, False])
def test_an_unknown_conversation_is_not_found(client: OpenAI, upstream: FakeUpstream, store: bool) -> None:
    model = upstream.model()
    with pytest.raises(NotFoundError) as refused:
        client.responses.create(model=model, input="Hi", conversation="conv_unknown", store=store)
    assert refused.value.param == "conversation"
    assert upstream.calls(model) == []


def test_a_conversation_object_is_accepted(client: OpenAI, upstream: FakeUpstream) -> None:
    conversation = client.conversations.create()
    made = client.responses.create(model=upstream.model(), input="Hi", conversation={"id": conversation.id})
    assert made.conversation is not None and made.conversation.id == conversation.id


def test_instructions_are_not_inherited(client: OpenAI, upstream: FakeUpstream) -> None:
    first = client.responses.create(model=upstream.model(say("Arr.")), input="Hi", instructions="Be a pirate.")
    assert first.instructions == "Be a pirate."
    model = upstream.model(say("Hello."))
    second = client.responses.create(model=model, input="Again", previous_response_id=first.id)
    assert second.instructions is None
    assert [message["role"] for message in upstream.calls(model)[0].messages] == ["user", "assistant", "user"]


def test_fields_are_echoed_and_sent_to_the_upstream(client: OpenAI, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Yes."))
    made = client.responses.create(
        model=model,
        input="Hi",
        instructions="Be brief.",
        metadata={"topic": "otters"},
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=64,
        parallel_tool_calls=False,
        user="somebody",
        safety_identifier="s1",
        prompt_cache_key="c1",
        reasoning={"effort": "low"},
        text={"verbosity": "low"},
        extra_body={"top_k": 7, "messages": "cannot override"},
    )
    body = upstream.bodies(model)[0]
    assert (made.metadata, made.temperature, made.top_p, made.max_output_tokens) == ({"topic": "otters"}, 0.5, 0.25, 64)
    assert made.parallel_tool_calls is False and made.user == "somebody"
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.5, 0.25, 7)
    assert body.get("max_completion_tokens", body.get("max_tokens")) == 64
    assert (body["reasoning_effort"], body["verbosity"], body["user"]) == ("low", "low", "somebody")
    assert "parallel_tool_calls" not in body  # only sent with tools


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("conversation_id", "conv_1"),
        ("thread_id", "t"),
        ("session_id", "s"),
        ("truncation", "some"),
        ("prompt", {"id": "pmpt_1"}),
        ("context_management", [{"type": "pruning"}]),
        ("tools", [{"type": "fuction"}]),
        ("temperature", 3),
        ("max_output_tokens", 1),
        ("metadata", {"k": "v" * 513}),
        ("include", ["nonsense"]),
        ("input", [{"type": "compaction_trigger"}, {"role": "user", "content": "Hi"}]),
        ("stream", "yes"),
    ],
)
def test_fields_that_cannot_be_honoured_are_refused_by_name(
    http: HttpClient, upstream: FakeUpstream, field: str, value: object
) -> None:
    model = upstream.model()
    answer = http.create(**{"model": model, "input": "Hi", field: value})
    assert answer.status == 400
    assert answer.error["param"].startswith(field)
    assert answer.error["type"] == "invalid_request_error"
    assert upstream.calls(model) == []
