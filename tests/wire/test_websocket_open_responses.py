"""The WebSocket cases of the Open Responses compliance tests, under their names."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.http_client import HttpClient, Json
from tests.support.open_responses import check_compacted, check_stream, check_websocket_error
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Script, say
from tests.wire import events
from tests.wire.websocket import WebSocketClient, check_error, open_websocket, text_of


@pytest.fixture
def socket(server: OutliveServer) -> Iterator[WebSocketClient]:
    with open_websocket(server.port) as opened:
        yield opened


@pytest.fixture
def model(upstream: FakeUpstream) -> str:
    def answer(body: Json) -> Script:
        """Answer with the word if the history contains it."""
        sent = json.dumps(body["messages"])
        return say("cobalt" if "What is the code word" in sent and "cobalt" in sent else "OK")

    return upstream.model(answer)


def completed(frames: list[Json]) -> Json:
    events.check(frames)
    check_stream(frames)
    response: Json = frames[-1]["response"]
    assert response["status"] == "completed" and response["output"]
    return response


def test_websocket_response(socket: WebSocketClient, model: str) -> None:
    items = [{"type": "message", "role": "user", "content": "Count from 1 to 3."}]
    completed(socket.turn(model=model, input=items))


def test_websocket_sequential_responses(socket: WebSocketClient, model: str) -> None:
    for word in ("first", "second"):
        completed(socket.turn(model=model, store=False, input=f"Reply with exactly: {word}"))


def test_websocket_continuation(socket: WebSocketClient, model: str) -> None:
    first = completed(socket.turn(model=model, store=False, input="Remember the code word: cobalt. Reply with OK."))
    question = "What is the code word? Reply with only the code word."
    second = completed(socket.turn(model=model, store=False, previous_response_id=first["id"], input=question))
    assert text_of(second) == "cobalt"


def test_websocket_generate_false(socket: WebSocketClient, model: str) -> None:
    warm = socket.turn(model=model, store=False, generate=False, input="The code word is cobalt.")[-1]["response"]
    assert warm["status"] == "completed" and warm["output"] == []
    question = "What is the code word? Reply with only the code word."
    second = completed(socket.turn(model=model, store=False, previous_response_id=warm["id"], input=question))
    assert text_of(second) == "cobalt"


def test_websocket_reconnect_store_false_recovery(server: OutliveServer, socket: WebSocketClient, model: str) -> None:
    first = completed(socket.turn(model=model, store=False, input="Remember the code word: copper. Reply with OK."))
    with open_websocket(server.port) as again:
        refused = again.refusal(model=model, store=False, previous_response_id=first["id"], input="Go on.")
        assert refused["code"] == "previous_response_not_found"
        items = [{"type": "message", "role": "user", "content": "Start a new response."}]
        completed(again.turn(model=model, store=False, input=items))


def test_websocket_previous_response_not_found(socket: WebSocketClient, model: str) -> None:
    (frame,) = socket.turn(
        model=model, store=False, previous_response_id="resp_openresponses_missing_1", input="This should fail."
    )
    check_websocket_error(frame)
    error = check_error(frame)
    assert (error["status"], error["code"]) == (400, "previous_response_not_found")


def test_websocket_failed_continuation_evicts_cache(socket: WebSocketClient, model: str) -> None:
    first = completed(socket.turn(model=model, store=False, input="Remember the code word: ember. Reply with OK."))
    output = {"type": "function_call_output", "call_id": "call_openresponses_missing", "output": "No matching call."}
    failed = socket.turn(model=model, store=False, previous_response_id=first["id"], input=[output])
    assert failed[-1]["type"] in ("error", "response.failed")
    retried = socket.refusal(model=model, store=False, previous_response_id=first["id"], input="Try to continue.")
    assert retried["code"] == "previous_response_not_found"


def test_websocket_compact_new_chain(socket: WebSocketClient, http: HttpClient, model: str) -> None:
    said = [
        {"type": "message", "role": "user", "content": "We launch on Tuesday."},
        {"type": "message", "role": "assistant", "content": "Understood."},
    ]
    compacted = http.post("/v1/responses/compact", {"model": model, "input": said})
    assert compacted.status == 200, compacted.body
    check_compacted(compacted.json())
    asked = {"type": "message", "role": "user", "content": "When do we launch?"}
    completed(socket.turn(model=model, store=False, input=[*compacted.json()["output"], asked]))
