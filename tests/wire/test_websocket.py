"""Turns over a WebSocket: their events, stored and remembered responses, and refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from socket import SHUT_RDWR
from typing import Any

import pytest

from outlive.core.events import read_frame
from tests.support.http_client import HttpClient, Json
from tests.support.server import OutliveServer
from tests.support.upstream import CUT, HANG, FakeUpstream, Gate, Refuse, call, ending, say, text
from tests.wire import events
from tests.wire.websocket import WebSocketClient, check_error, open_websocket, text_of

USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


@pytest.fixture
def socket(server: OutliveServer) -> Iterator[WebSocketClient]:
    with open_websocket(server.port) as opened:
        yield opened


def asked(upstream: FakeUpstream, model: str) -> list[tuple[str, Any]]:
    """Return roles and texts of the messages in the model's last request."""
    return [(message["role"], message.get("content")) for message in upstream.calls(model)[-1].messages]


# -- turns


def test_a_turn_has_the_events_of_a_stream_without_its_framing(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("Hel", "lo"))
    frames = socket.turn(model=model, input="Hi")
    events.check(frames)
    assert events.text_of(frames) == "Hello"
    journal = events.split(http.follow(frames[0]["response"]["id"]).read_rest())
    # The same payloads as in the journal and over SSE.
    assert [frame.split(b"data: ")[1].strip().decode() for frame in journal] == socket.texts


def test_turns_follow_one_another_on_one_connection(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model(say("one"), say("two"), say("three"))
    assert [text_of(socket.answer(model=model, input="next")) for _ in range(3)] == ["one", "two", "three"]


def test_turns_sent_together_are_answered_in_order(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model(say("one"), say("two"), say("three"))
    for _ in range(3):
        socket.create(model=model, input="next", store=False)
    turns = [socket.rest() for _ in range(3)]
    for frames in turns:
        events.check(frames)
    assert [text_of(frames[-1]["response"]) for frames in turns] == ["one", "two", "three"]


def test_fields_of_http_streams_are_accepted(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model()
    options = {"stream": True, "background": False, "stream_options": {"include_obfuscation": False}}
    assert socket.answer(model=model, input="Hi", include=[], tools=[], **options)["status"] == "completed"
    assert socket.answer(model=model, input="Hi", stream=False, background=None)["status"] == "completed"


def test_a_binary_frame_is_accepted(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    body = {"type": "response.create", "model": upstream.model(), "input": "Hi"}
    socket.connection.send(json.dumps(body).encode())
    assert socket.rest()[-1]["type"] == "response.completed"


def test_large_frames_are_accepted(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model, long = upstream.model(), "x" * 3_000_000
    socket.answer(model=model, input=long)
    assert asked(upstream, model) == [("user", long)]


def test_turns_are_added_to_their_conversation(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("one"), say("two"))
    conversation = http.post("/v1/conversations", {}).json()["id"]
    socket.answer(model=model, input="first", conversation=conversation)
    socket.answer(model=model, input="second", conversation={"id": conversation})
    assert http.list_messages(conversation) == [
        ("user", "first"), ("assistant", "one"), ("user", "second"), ("assistant", "two")
    ]  # fmt: skip


# -- chains


def test_a_stored_response_is_continued_on_the_socket_and_over_http(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("one"), say("two"), say("three"), say("four"))
    first = http.create(model=model, input="1").json()["id"]
    second = socket.answer(model=model, input="2", previous_response_id=first)
    assert second["previous_response_id"] == first
    third = http.create(model=model, input="3", previous_response_id=second["id"]).json()["id"]
    with open_websocket(http.port) as other:
        other.answer(model=model, input="4", previous_response_id=third)
    said = [("user", "1"), ("assistant", "one"), ("user", "2"), ("assistant", "two")]
    assert asked(upstream, model) == [*said, ("user", "3"), ("assistant", "three"), ("user", "4")]


def test_an_unstored_response_is_continued_only_on_its_own_connection(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("one"), say("two"), say("three"))
    first = socket.answer(model=model, input="1", store=False)
    second = socket.answer(model=model, input="2", store=False, previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"] and second["store"] is False
    assert asked(upstream, model) == [("user", "1"), ("assistant", "one"), ("user", "2")]
    # It is not found over HTTP or on another connection.
    assert http.get(f"/v1/responses/{first['id']}").status == 404
    over_http = http.create(model=model, input="x", store=False, previous_response_id=first["id"])
    assert over_http.error["code"] == "previous_response_not_found"
    with open_websocket(http.port) as other:
        refused = other.refusal(model=model, input="x", store=False, previous_response_id=second["id"])
        assert (refused["status"], refused["code"]) == (400, "previous_response_not_found")
        assert text_of(other.answer(model=model, input="all of it", store=False)) == "three"
    assert len(upstream.calls(model)) == 3


def test_every_response_of_an_unstored_chain_can_be_continued(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model(say("one"), say("two"), say("other"))
    first = socket.answer(model=model, input="1", store=False)["id"]
    socket.answer(model=model, input="2", store=False, previous_response_id=first)
    socket.answer(model=model, input="instead", store=False, previous_response_id=first)
    assert asked(upstream, model) == [("user", "1"), ("assistant", "one"), ("user", "instead")]


def test_an_unstored_response_may_continue_a_stored_one(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("one"), say("two"), say("three"))
    stored = socket.answer(model=model, input="1")["id"]
    second = socket.answer(model=model, input="2", store=False, previous_response_id=stored)["id"]
    third = socket.answer(model=model, input="3", store=False, previous_response_id=second)["id"]
    said = [("user", "1"), ("assistant", "one"), ("user", "2"), ("assistant", "two"), ("user", "3")]
    assert asked(upstream, model) == said
    # It is refused instead of shortening the context.
    http.delete(f"/v1/responses/{stored}")
    refused = socket.refusal(model=model, input="4", store=False, previous_response_id=third)
    assert (refused["code"], refused["param"]) == ("previous_response_not_found", "previous_response_id")


def test_an_unstored_chain_from_a_conversation_keeps_its_starting_point(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("one"), say("aside"), say("more"), say("two"), say("still"))
    conversation = http.post("/v1/conversations", {}).json()["id"]
    socket.answer(model=model, input="1", conversation=conversation)
    aside = socket.answer(model=model, input="psst", conversation=conversation, store=False)["id"]
    aside = socket.answer(model=model, input="and?", store=False, previous_response_id=aside)["id"]
    before = [("user", "1"), ("assistant", "one"), ("user", "psst"), ("assistant", "aside"), ("user", "and?")]
    assert asked(upstream, model) == before
    socket.answer(model=model, input="2", conversation=conversation)
    # Later turns of the conversation are no part of this chain.
    aside = socket.answer(model=model, input="so?", store=False, previous_response_id=aside)["id"]
    assert asked(upstream, model) == [*before, ("assistant", "more"), ("user", "so?")]
    http.delete(f"/v1/conversations/{conversation}")
    refused = socket.refusal(model=model, input="?", store=False, previous_response_id=aside)
    assert refused["code"] == "previous_response_not_found"


def test_a_stored_response_cannot_continue_an_unstored_one(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model()
    first = socket.answer(model=model, input="1", store=False)["id"]
    refused = socket.refusal(model=model, input="2", previous_response_id=first)
    assert (refused["code"], refused["param"]) == ("previous_response_not_found", "previous_response_id")
    assert "store" in refused["message"]


def test_a_tool_loop_runs_without_storage(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    ask = [call(0, "{}", "call_1", "look"), *ending("tool_calls")]
    model = upstream.model(ask, say("Rain."))
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]
    first = socket.answer(model=model, input="Weather?", tools=tools, store=False)
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "wet"}
    second = socket.answer(model=model, input=[output], tools=tools, store=False, previous_response_id=first["id"])
    assert text_of(second) == "Rain."
    assert [role for role, _ in asked(upstream, model)] == ["user", "assistant", "tool"]


# -- the eviction rule


def test_a_failed_continuation_evicts_its_parent(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model()
    first = socket.answer(model=model, input="1", store=False)["id"]
    stray = {"type": "function_call_output", "call_id": "call_nobody_made", "output": "?"}
    refused = socket.refusal(model=model, input=[stray], store=False, previous_response_id=first)
    assert (refused["status"], refused["param"]) == (400, "input[0].call_id")
    again = socket.refusal(model=model, input="2", store=False, previous_response_id=first)
    assert again["code"] == "previous_response_not_found"
    assert socket.answer(model=model, input="anew", store=False)["status"] == "completed"


def test_a_continuation_that_fails_upstream_evicts_its_parent(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model(say("one"), [Refuse(400)], say("two"))
    first = socket.answer(model=model, input="1", store=False)["id"]
    failed = socket.turn(model=model, input="2", store=False, previous_response_id=first)[-1]
    assert failed["type"] == "response.failed"
    for parent in (first, failed["response"]["id"]):
        refused = socket.refusal(model=model, input="3", store=False, previous_response_id=parent)
        assert refused["code"] == "previous_response_not_found"


def test_a_continuation_of_a_stored_response_may_fail_and_be_tried_again(
    socket: WebSocketClient, upstream: FakeUpstream
) -> None:
    model = upstream.model(say("one"), say("two"))
    first = socket.answer(model=model, input="1")["id"]
    socket.refusal(model=model, input="2", temperature=9, previous_response_id=first)
    assert text_of(socket.answer(model=model, input="2", previous_response_id=first)) == "two"


def test_an_incomplete_answer_can_be_continued(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model([text("Once "), text("upon"), CUT], say("a time."))
    cut = socket.turn(model=model, input="Tell", store=False)[-1]
    assert cut["type"] == "response.incomplete"
    socket.answer(model=model, input="go on", store=False, previous_response_id=cut["response"]["id"])
    assert asked(upstream, model) == [("user", "Tell"), ("assistant", "Once upon"), ("user", "go on")]


def test_an_incomplete_call_is_sent_once_its_output_is_given(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model([call(0, '{"a":', "call_1", "look"), CUT], say("Well."))
    cut = socket.turn(model=model, input="Look", store=False)[-1]["response"]
    assert cut["output"][0]["status"] == "incomplete"
    output = {"type": "function_call_output", "call_id": cut["output"][0]["call_id"], "output": "?"}
    socket.answer(model=model, input=[output], store=False, previous_response_id=cut["id"])
    messages = upstream.calls(model)[-1].messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"unparsed":"{\\"a\\":"}'
    assert messages[2]["content"] == "?"


# -- generate: false


@pytest.mark.parametrize("store", [True, False])
def test_a_create_without_generation_prepares_a_later_turn(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream, store: bool
) -> None:
    model = upstream.model(say("Ready."))
    frames = socket.turn(model=model, input="Remember this.", generate=False, store=store)
    events.check(frames)
    warm = frames[-1]["response"]
    assert (warm["status"], warm["output"], warm["usage"]) == ("completed", [], USAGE)
    assert upstream.calls(model) == []
    assert http.get(f"/v1/responses/{warm['id']}").status == (200 if store else 404)
    socket.answer(model=model, input="Go.", store=store, previous_response_id=warm["id"])
    assert asked(upstream, model) == [("user", "Remember this.\n\nGo.")]


def test_a_create_without_generation_may_have_no_input(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    model = upstream.model()
    warm = socket.answer(model=model, input=[], instructions="Be brief.", generate=False, store=False)
    prewarmed = socket.answer(model=model, generate=True, prompt_cache_options={"prewarm": True})
    assert warm["output"] == prewarmed["output"] == []
    socket.answer(model=model, input="Go.", store=False, previous_response_id=warm["id"])
    assert asked(upstream, model) == [("user", "Go.")]
    assert len(upstream.calls(model)) == 1


# -- stored responses outlive the connection


@pytest.mark.parametrize("leave", ["close", "reset"])
def test_a_stored_response_survives_its_connection_and_is_resumed_over_http(
    server: OutliveServer, http: HttpClient, upstream: FakeUpstream, leave: str
) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon "), text("a time."), *ending()])
    with open_websocket(server.port) as socket:
        socket.create(model=model, input="Hi")
        seen = socket.until("response.output_text.delta")
        if leave == "reset":
            socket.connection.socket.shutdown(SHUT_RDWR)  # without a closing frame
    response_id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
    gate.open()
    with http.follow(response_id, after=last) as rest:
        frames = events.split(rest.read_rest())
    assert read_frame(frames[0])["sequence_number"] == last + 1
    with http.follow(response_id) as again:
        whole = events.split(again.read_rest())
    assert whole[last + 1 :] == frames
    assert [frame.split(b"data: ")[1].strip().decode() for frame in whole[: last + 1]] == socket.texts
    assert events.text_of([read_frame(frame) for frame in whole]) == "Once upon a time."
    assert not upstream.calls(model)[0].disconnected


def test_an_unstored_response_ends_with_its_connection(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, HANG])
    with open_websocket(server.port) as socket:
        socket.create(model=model, input="Hi", store=False)
        socket.until("response.output_text.delta")
    gate.open()
    upstream.calls(model)[0].wait_disconnected()


def test_a_response_can_be_cancelled_over_http(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model([text("Once "), HANG], say("Next."))
    socket.create(model=model, input="Hi")
    response_id = socket.until("response.output_text.delta")[0]["response"]["id"]
    http.post(f"/v1/responses/{response_id}/cancel")
    assert socket.rest()[-1]["type"] == "response.cancelled"
    assert text_of(socket.answer(model=model, input="Hi")) == "Next."


def test_deleting_a_running_response_ends_its_turn(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream
) -> None:
    model = upstream.model([text("Once "), HANG], say("Next."))
    socket.create(model=model, input="Hi")
    response_id = socket.until("response.output_text.delta")[0]["response"]["id"]
    http.delete(f"/v1/responses/{response_id}")
    last = socket.rest()[-1]
    if last["type"] == "error":  # it was hidden before its end was read
        assert check_error(last)["status"] == 404
    else:
        assert last["type"] == "response.cancelled"
    assert text_of(socket.answer(model=model, input="Hi")) == "Next."


# -- errors keep the connection open

WRONG: list[tuple[Json, str | None, str]] = [
    ({"model": "m", "input": 5}, "input", "invalid_type"),
    ({"input": "Hi"}, "model", "missing_required_parameter"),
    ({"model": "m"}, "input", "missing_required_parameter"),
    ({"model": "m", "input": "Hi", "temperature": 3}, "temperature", "decimal_above_max_value"),
    ({"model": "m", "input": "Hi", "background": True}, "background", "unsupported_parameter"),
    ({"model": "m", "input": "Hi", "generate": "no"}, "generate", "invalid_type"),
    ({"model": "m", "input": "Hi", "stream": "yes"}, "stream", "invalid_type"),
    ({"model": "m", "input": "Hi", "thread_id": "t"}, "thread_id", "unknown_parameter"),
    ({"model": "m", "input": "Hi", "previous_response_id": 5}, "previous_response_id", "invalid_type"),
    (
        {"model": "m", "input": "Hi", "previous_response_id": "resp_unknown"},
        "previous_response_id",
        "previous_response_not_found",
    ),
    (
        {"model": "m", "input": "Hi", "store": False, "previous_response_id": "resp_unknown"},
        "previous_response_id",
        "previous_response_not_found",
    ),
]


def test_an_invalid_turn_is_refused_by_name_and_the_next_one_runs(
    socket: WebSocketClient, upstream: FakeUpstream
) -> None:
    for body, param, code in WRONG:
        refused = socket.refusal(**body)
        assert (refused["status"], refused["param"], refused["code"]) == (400, param, code), body
    assert socket.answer(model=upstream.model(), input="Hi")["status"] == "completed"


NO_TURNS: list[tuple[str, str | None, str]] = [
    ("", None, "invalid_json"),
    ("{", None, "invalid_json"),
    ("[]", None, "invalid_type"),
    ("7", None, "invalid_type"),
    ("{}", "type", "invalid_value"),
    ('{"type": "response.cancel"}', "type", "invalid_value"),
    ('{"type": 5}', "type", "invalid_value"),
    ('{"type": ["response.create"]}', "type", "invalid_value"),
    ('{"type": "response.steer", "input": "x"}', "previous_response_id", "missing_required_parameter"),
    ('{"type": "response.steer", "previous_response_id": "resp_1"}', "input", "missing_required_parameter"),
    ('{"type": "response.steer", "previous_response_id": "resp_1", "input": 5}', "input", "invalid_type"),
    (
        '{"type": "response.steer", "previous_response_id": "resp_1", "input": "x", "stream_id": "a"}',
        "stream_id",
        "unknown_parameter",
    ),
]


def test_an_invalid_frame_is_refused_and_the_connection_stays_open(
    socket: WebSocketClient, upstream: FakeUpstream
) -> None:
    for frame, param, code in NO_TURNS:
        socket.connection.send(frame)
        refused = check_error(socket.frame())
        assert (refused["status"], refused["param"], refused["code"]) == (400, param, code), frame
    assert socket.answer(model=upstream.model(), input="Hi")["status"] == "completed"


def test_a_locked_conversation_is_refused_with_a_time_to_retry(
    socket: WebSocketClient, http: HttpClient, upstream: FakeUpstream
) -> None:
    gate = Gate()
    model = upstream.model([gate, *say("Done.")])
    conversation = http.post("/v1/conversations", {}).json()["id"]
    socket.create(model=model, input="Hi", conversation=conversation, stream_id="a")
    gate.wait_reached()
    socket.create(model=model, input="Hi", conversation=conversation, stream_id="b")
    refused = check_error(socket.until("error")[-1])
    assert (refused["status"], refused["code"]) == (400, "conversation_locked")
    assert refused["headers"] == {"retry-after": "1"}
    gate.open()
    assert socket.rest()[-1]["type"] == "response.completed"


def test_steering_is_refused_with_its_input(socket: WebSocketClient, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, *say("upon a time.")])
    socket.create(model=model, input="Hi", stream_id="main")
    response_id = socket.until("response.output_text.delta")[0]["response"]["id"]
    socket.send(type="response.steer", previous_response_id=response_id, input="Faster.")
    failed = socket.until("response.steer.failed")[-1]
    assert failed["steer"] == {"previous_response_id": response_id, "input": "Faster."}
    assert (failed["error"]["code"], failed["error"]["type"]) == ("steering_not_supported", "invalid_request_error")
    assert (failed["stream_id"], failed["sequence_number"]) == ("main", 0)
    gate.open()
    assert socket.rest()[-1]["type"] == "response.completed"
    messages = [{"role": "user", "content": "Slower."}]
    socket.send(type="response.steer", previous_response_id="resp_elsewhere", input=messages)
    failed = socket.frame()
    assert "stream_id" not in failed and failed["steer"]["input"] == messages
