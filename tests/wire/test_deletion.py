"""Deleting and expiring: hidden at once, erased from the file, and nothing that still runs is hurt (D18)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, ending, say, text
from tests.wire import events
from tests.wire.conftest import Servers
from tests.wire.raw import Wire


def is_on_disk(server: OutliveServer, words: str) -> bool:
    """Whether the words are in any file of the server, as they are or as the other end of a page."""
    return any(words.encode() in path.read_bytes() for path in Path(server.folder).iterdir() if path.is_file())


def wait_erased(server: OutliveServer, words: str) -> None:
    deadline = time.monotonic() + 10
    while is_on_disk(server, words):
        assert time.monotonic() < deadline, f"{words!r} is still on disk"
        time.sleep(0.05)


def test_a_deleted_response_is_gone_for_everybody(client: OpenAI, wire: Wire, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model(), input="Hi")
    answer = wire.delete(f"/v1/responses/{made.id}")
    assert answer.json() == {"id": made.id, "object": "response", "deleted": True}
    for method, path in (
        ("GET", ""),
        ("GET", "?stream=true"),
        ("GET", "/input_items"),
        ("POST", "/cancel"),
        ("DELETE", ""),
    ):
        assert wire.ask(method, f"/v1/responses/{made.id}{path}").status == 404
    assert made.id not in wire.get("/v1/responses?limit=100").body.decode()
    with pytest.raises(NotFoundError):
        client.responses.delete(made.id)


def test_deleted_words_are_not_found_in_the_file_either(
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


def test_a_deleted_item_is_not_found_in_the_file_either(client: OpenAI, server: OutliveServer) -> None:
    conversation = client.conversations.create()
    item: Any = {"role": "user", "content": "canary-in-item"}
    added = client.conversations.items.create(conversation.id, items=[item])
    assert is_on_disk(server, "canary-in-item")
    client.conversations.items.delete(added.data[0].id or "", conversation_id=conversation.id)
    wait_erased(server, "canary-in-item")


def test_deleting_a_running_response_cancels_it_first(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Once "), HANG])
    stream = wire.stream(model=model, input="Hi")
    frames = stream.until("response.output_text.delta")
    response_id = events.read(frames[0])["response"]["id"]
    assert wire.delete(f"/v1/responses/{response_id}").status == 200
    upstream.calls(model)[0].wait_left(5)
    assert wire.get(f"/v1/responses/{response_id}").status == 404
    told = [events.read(frame) for frame in frames]
    last = events.read(stream.until("response.cancelled")[-1])
    assert last["sequence_number"] > told[-1]["sequence_number"]


def test_items_that_are_in_a_conversation_stay_there(
    client: OpenAI, wire: Wire, server: OutliveServer, upstream: FakeUpstream
) -> None:
    conversation = client.conversations.create().id
    made = client.responses.create(
        model=upstream.model(say("kept-answer")), input="kept-question", conversation=conversation
    )
    client.responses.delete(made.id)
    assert wire.said(conversation) == [("user", "kept-question"), ("assistant", "kept-answer")]
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
    client: OpenAI, wire: Wire, upstream: FakeUpstream
) -> None:
    conversation = client.conversations.create().id
    client.responses.create(model=upstream.model(say("Four.")), input="2+2?", conversation=conversation)
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon."), *ending()])
    stream = wire.stream(model=model, input="A story!", conversation=conversation)
    frames = stream.until("response.output_text.delta")
    client.conversations.delete(conversation)
    gate.open()
    final = events.read_all(b"".join(frames) + stream.rest())[-1]["response"]
    assert final["status"] == "completed"
    assert final["output"][0]["content"][0]["text"] == "Once upon."
    assert wire.get(f"/v1/responses/{final['id']}").json() == final
    assert wire.get(f"/v1/conversations/{conversation}").status == 404
    assert wire.get(f"/v1/conversations/{conversation}/items").status == 404
    answer = wire.create(model=upstream.model(), input="?", previous_response_id=final["id"])
    assert answer.error["code"] == "previous_response_not_found"  # its past is gone: never a shorter one


def test_a_run_that_needs_a_deleted_parent_goes_on(client: OpenAI, wire: Wire, upstream: FakeUpstream) -> None:
    parent = client.responses.create(model=upstream.model(say("Four.")), input="2+2?")
    gate = Gate()
    model = upstream.model([gate, *say("Six.")])
    stream = wire.stream(model=model, input="3+3?", previous_response_id=parent.id)
    stream.until("response.created")
    client.responses.delete(parent.id)
    gate.open()
    stream.until("response.completed")
    assert len(upstream.calls(model)[0].messages) == 3


@pytest.fixture
def forgetful(servers: Servers) -> OutliveServer:
    """A response is kept for about a second and a half after its last use."""
    return servers("--response-days", "0.0000174", "--sweep-seconds", "0.1")


def test_what_is_not_used_expires_and_what_is_used_does_not(forgetful: OutliveServer, upstream: FakeUpstream) -> None:
    with Wire(forgetful.port) as wire:
        conversation = wire.post("/v1/conversations", {}).json()["id"]
        wire.create(model=upstream.model(say("stays")), input="stays, too", conversation=conversation)
        idle = wire.create(model=upstream.model(say("short-lived canary")), input="Hi").json()["id"]
        root = wire.create(model=upstream.model(say("a0")), input="q0").json()["id"]
        parent = root
        deadline = time.monotonic() + 10
        while wire.get(f"/v1/responses/{idle}").status != 404:
            assert time.monotonic() < deadline
            answer = wire.create(model=upstream.model(say("a")), input="q", previous_response_id=parent)
            assert answer.status == 200
            parent = answer.json()["id"]
            time.sleep(0.1)
        # being a parent has renewed the whole chain
        assert wire.get(f"/v1/responses/{root}").status == 200
        wait_erased(forgetful, "short-lived canary")
        # conversations are kept for ever, and their items with them
        assert wire.said(conversation) == [("user", "stays, too"), ("assistant", "stays")]
