"""Deletion and expiry: data is hidden at once, then erased from the file, and running responses go on (D18)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, ending, say, text
from tests.wire import events
from tests.wire.conftest import Servers


def is_on_disk(server: OutliveServer, words: str) -> bool:
    """Return True if the words are in any file of the server."""
    return any(words.encode() in path.read_bytes() for path in Path(server.folder).iterdir() if path.is_file())


def wait_erased(server: OutliveServer, words: str) -> None:
    deadline = time.monotonic() + 10
    while is_on_disk(server, words):
        assert time.monotonic() < deadline, f"{words!r} is still on disk"
        time.sleep(0.05)


def test_a_deleted_response_is_not_found_by_any_route(client: OpenAI, http: HttpClient, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model(), input="Hi")
    answer = http.delete(f"/v1/responses/{made.id}")
    assert answer.json() == {"id": made.id, "object": "response", "deleted": True}
    for method, path in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("GET", "/input_items"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ):
        assert http.request(method, f"/v1/responses/{made.id}{path}").status == 404
    assert made.id not in http.get("/v1/responses?limit=100").body.decode()
    with pytest.raises(NotFoundError):
        client.responses.delete(made.id)


def test_a_deleted_response_is_erased_from_the_file(
    client: OpenAI, server: OutliveServer, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("canary-in-the-output ", "and more"))
    made = client.responses.create(
        model=model, input="canary-in-the-input", instructions="canary-in-instructions", metadata={"a": "canary-meta"}
    )
    conversation = client.conversations.create(items=[{"role": "user", "content": "canary-in-conversation"}])
    canaries = ("canary-in-the-output", "canary-in-the-input", "canary-in-instructions", "canary-meta")
    for canary in (*canaries, "canary-in-conversation"):
        assert is_on_disk(server, canary)
    client.responses.delete(made.id)
    client.conversations.delete(conversation.id)
    for canary in (*canaries, "canary-in-conversation"):
        wait_erased(server, canary)


def test_a_deleted_item_is_erased_from_the_file(client: OpenAI, server: OutliveServer) -> None:
    conversation = client.conversations.create()
    item: Any = {"role": "user", "content": "canary-in-item"}
    added = client.conversations.items.create(conversation.id, items=[item])
    assert is_on_disk(server, "canary-in-item")
    client.conversations.items.delete(added.data[0].id or "", conversation_id=conversation.id)
    wait_erased(server, "canary-in-item")


def test_deleting_a_running_response_cancels_it_first(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Once "), HANG])
    stream = http.stream(model=model, input="Hi")
    frames = stream.read_through("response.output_text.delta")
    response_id = events.read(frames[0])["response"]["id"]
    assert http.delete(f"/v1/responses/{response_id}").status == 200
    upstream.calls(model)[0].wait_disconnected()
    assert http.get(f"/v1/responses/{response_id}").status == 404
    received = [events.read(frame) for frame in frames]
    last = events.read(stream.read_through("response.cancelled")[-1])
    assert last["sequence_number"] > received[-1]["sequence_number"]


def test_items_of_a_deleted_response_stay_in_its_conversation(
    client: OpenAI, http: HttpClient, server: OutliveServer, upstream: FakeUpstream
) -> None:
    conversation = client.conversations.create().id
    made = client.responses.create(
        model=upstream.model(say("kept-answer")), input="kept-question", conversation=conversation
    )
    client.responses.delete(made.id)
    assert http.list_messages(conversation) == [("user", "kept-question"), ("assistant", "kept-answer")]
    model = upstream.model()
    client.responses.create(model=model, input="And?", conversation=conversation)
    assert [message["content"] for message in upstream.calls(model)[0].messages] == [
        "kept-question",
        "kept-answer",
        "And?",
    ]
    client.conversations.delete(conversation)
    later = client.responses.create(model=upstream.model(), input="unrelated")
    assert later.status == "completed"


def test_a_response_in_a_deleted_conversation_still_ends_normally(
    client: OpenAI, http: HttpClient, upstream: FakeUpstream
) -> None:
    conversation = client.conversations.create().id
    client.responses.create(model=upstream.model(say("Four.")), input="2+2?", conversation=conversation)
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    stream = http.stream(model=model, input="A story!", conversation=conversation)
    frames = stream.read_through("response.output_text.delta")
    client.conversations.delete(conversation)
    gate.open()
    final = events.read_all(b"".join(frames) + stream.read_rest())[-1]["response"]
    assert final["status"] == "completed"
    assert final["output"][0]["content"][0]["text"] == "Once upon."
    assert http.get(f"/v1/responses/{final['id']}").json() == final
    assert http.get(f"/v1/conversations/{conversation}").status == 404
    assert http.get(f"/v1/conversations/{conversation}/items").status == 404
    answer = http.create(model=upstream.model(), input="?", previous_response_id=final["id"])
    assert answer.error["code"] == "previous_response_not_found"  # refused, because its history is incomplete


def test_a_run_continues_after_its_parent_is_deleted(client: OpenAI, http: HttpClient, upstream: FakeUpstream) -> None:
    parent = client.responses.create(model=upstream.model(say("Four.")), input="2+2?")
    gate = Gate()
    model = upstream.model([gate, *say("Six.")])
    stream = http.stream(model=model, input="3+3?", previous_response_id=parent.id)
    stream.read_through("response.created")
    client.responses.delete(parent.id)
    gate.open()
    stream.read_through("response.completed")
    assert len(upstream.calls(model)[0].messages) == 3


@pytest.fixture
def forgetful(servers: Servers) -> OutliveServer:
    """A server that keeps a response for about a second and a half after its last use."""
    return servers("--response-days", "0.0000174", "--sweep-seconds", "0.1")


def test_unused_responses_expire_and_parents_and_conversations_stay(
    forgetful: OutliveServer, upstream: FakeUpstream
) -> None:
    with HttpClient(forgetful.port) as http:
        conversation = http.post("/v1/conversations", {}).json()["id"]
        http.create(model=upstream.model(say("stays")), input="stays, too", conversation=conversation)
        idle = http.create(model=upstream.model(say("short-lived canary")), input="Hi").json()["id"]
        root = http.create(model=upstream.model(say("a0")), input="q0").json()["id"]
        parent = root
        deadline = time.monotonic() + 10
        while http.get(f"/v1/responses/{idle}").status != 404:
            assert time.monotonic() < deadline
            answer = http.create(model=upstream.model(say("a")), input="q", previous_response_id=parent)
            assert answer.status == 200
            parent = answer.json()["id"]
            time.sleep(0.1)
        # Using a response as a parent renews its whole chain.
        assert http.get(f"/v1/responses/{root}").status == 200
        # Conversations and their items are kept for ever.
        assert http.list_messages(conversation) == [("user", "stays, too"), ("assistant", "stays")]
