"""WebSocket connections: access, duration, size of frames, and closing."""

from __future__ import annotations

import json
import signal
import socket as sockets
import threading
import time
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.http_client import HttpClient, Json
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, ending, say, text
from tests.wire import events
from tests.wire.conftest import Servers
from tests.wire.websocket import check_error, open_websocket, text_of

KEYS = ("--api-key", "alice=sesame", "--api-key", "bob=mellon", "--websocket-seconds", "2")


def refused(port: int, **options: str) -> tuple[int, Json]:
    """Return status and error of a refused handshake."""
    with pytest.raises(InvalidStatus) as error, open_websocket(port, **options):
        pass
    response = error.value.response
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] and response.headers["x-outlive-version"]
    body: Json = json.loads(response.body)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return response.status_code, body["error"]


# -- access


def test_a_key_is_required_as_over_http(servers: Servers) -> None:
    port = servers(*KEYS).port
    assert refused(port)[0] == 401
    status, error = refused(port, key="wrong")
    assert (status, error["code"]) == (401, "invalid_api_key")
    with open_websocket(port, key="sesame") as socket:
        assert socket.connection.response is not None
        assert socket.connection.response.headers["x-outlive-version"]


def test_stored_responses_belong_to_the_keys_owner(servers: Servers, upstream: FakeUpstream) -> None:
    port, model = servers(*KEYS).port, upstream.model(say("one"), say("two"))
    with open_websocket(port, key="sesame") as alice, open_websocket(port, key="mellon") as bob:
        mine = alice.answer(model=model, input="Hi")["id"]
        other = bob.refusal(model=model, input="Hi", previous_response_id=mine)
        assert other["code"] == "previous_response_not_found"
        assert alice.answer(model=model, input="Hi", previous_response_id=mine)
    assert HttpClient(port, "sesame").get(f"/v1/responses/{mine}").status == 200
    assert HttpClient(port, "mellon").get(f"/v1/responses/{mine}").status == 404


def test_a_keyless_server_refuses_sockets_of_other_origins(server: OutliveServer) -> None:
    status, error = refused(server.port, origin="https://evil.example")
    assert (status, error["code"]) == (403, "forbidden_origin")
    with open_websocket(server.port, origin=f"http://127.0.0.1:{server.port}"):
        pass


def test_only_one_path_accepts_websockets(server: OutliveServer) -> None:
    status, error = refused(server.port, path="/v1/conversations")
    assert (status, error["code"]) == (404, "unknown_url")


def test_a_query_string_is_accepted(server: OutliveServer, upstream: FakeUpstream) -> None:
    with open_websocket(server.port, path="/v1/responses?beta=true") as socket:
        assert socket.answer(model=upstream.model(), input="Hi")


def test_an_upgrade_to_another_protocol_is_an_ordinary_request(server: OutliveServer, http: HttpClient) -> None:
    assert http.get("/v1/responses", connection="upgrade", upgrade="h2c").status == 200


# -- size


def test_a_frame_that_is_too_large_closes_the_connection(servers: Servers, upstream: FakeUpstream) -> None:
    server = servers("--max-body-bytes", "100000")
    with open_websocket(server.port) as socket:
        assert socket.answer(model=upstream.model(), input="x" * 90_000)
        socket.create(model="m", input="x" * 110_000)
        assert socket.wait_close()[0] == 1009


def test_the_remembered_history_of_a_connection_is_limited(servers: Servers, upstream: FakeUpstream) -> None:
    server, model = servers("--max-body-bytes", "100000"), upstream.model(say("."))
    with open_websocket(server.port) as socket:
        old = socket.answer(model=model, input="x" * 50_000, store=False)["id"]
        new = socket.answer(model=model, input="x" * 50_000, store=False)["id"]
        gone = socket.refusal(model=model, input="2", store=False, previous_response_id=old)
        assert gone["code"] == "previous_response_not_found"
        assert socket.answer(model=model, input="2", store=False, previous_response_id=new)


def test_invalid_utf8_closes_the_connection(server: OutliveServer) -> None:
    with open_websocket(server.port) as socket:
        socket.connection.send(b'{"type": "\xff"}', text=True)
        assert socket.wait_close()[0] == 1007


# -- duration


def test_an_idle_connection_is_closed_at_its_time_limit(servers: Servers) -> None:
    with open_websocket(servers(*KEYS).port, key="sesame") as socket:
        error = check_error(socket.frame())
        assert (error["status"], error["code"]) == (400, "websocket_connection_limit_reached")
        code, reason = socket.wait_close()
        assert code == 1001 and reason


def test_a_running_turn_ends_and_no_other_starts_after_the_time_limit(servers: Servers, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon a time."), *ending()])
    with open_websocket(servers(*KEYS).port, key="sesame") as socket:
        began = time.monotonic()
        socket.create(model=model, input="Hi")
        socket.until("response.output_text.delta")
        time.sleep(max(0.0, began + 2.2 - time.monotonic()))
        error = socket.refusal(model=model, input="Hi", stream_id="late")
        assert error["code"] == "websocket_connection_limit_reached"
        gate.open()
        assert text_of(socket.rest()[-1]["response"]) == "Once upon a time."
        assert check_error(socket.frame())["code"] == "websocket_connection_limit_reached"
        assert socket.wait_close()[0] == 1001


# -- slow readers


def test_a_slow_reader_delays_no_other_and_gets_every_event(
    server: OutliveServer, http: HttpClient, upstream: FakeUpstream
) -> None:
    word = "x" * 4000
    model = upstream.model([*(text(word) for _ in range(1000)), *ending()])
    with open_websocket(server.port) as socket:
        socket.connection.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 65536)
        socket.create(model=model, input="Hi")
        response_id = socket.frame()["response"]["id"]
        assert http.get(f"/v1/responses/{response_id}?wait=20").json()["status"] == "completed"
        socket.rest()
    frames = [json.loads(frame) for frame in socket.texts]
    events.check(frames)
    assert events.text_of(frames) == word * 1000


# -- shutdown


def test_a_draining_server_closes_idle_connections_at_once(tmp_path: Path, upstream: FakeUpstream) -> None:
    with OutliveServer(tmp_path, upstream.url, "--grace-seconds", "10") as server:
        model = upstream.model([text("Once "), HANG])
        with open_websocket(server.port) as idle, open_websocket(server.port) as busy:
            busy.create(model=model, input="Hi", store=False)
            busy.until("response.output_text.delta")
            server.send_signal(signal.SIGTERM)
            assert idle.wait_close()[0] == 1012
            # No new turn starts on the other connection, and none can be opened.
            error = busy.refusal(model=model, input="Hi", stream_id="late")
            assert error["status"] == 503
            assert refused(server.port)[0] == 503


def test_a_stored_turn_survives_a_restart_and_is_resumed_over_http(tmp_path: Path, upstream: FakeUpstream) -> None:
    gate = Gate()
    with OutliveServer(tmp_path, upstream.url, "--grace-seconds", "1") as server:
        model = upstream.model([gate, HANG], say("Here ", "I am."))
        with open_websocket(server.port) as socket:
            socket.create(model=model, input="Hi")
            seen = socket.until("response.in_progress")
            gate.wait_reached()
            server.send_signal(signal.SIGTERM)
            code, reason = socket.wait_close()
            assert code == 1012 and "resume" in reason
        server.wait_exit()
        server.start()
        response_id = seen[0]["response"]["id"]
        with HttpClient(server.port) as http, http.follow(response_id, after=seen[-1]["sequence_number"]) as rest:
            frames = [events.read(frame) for frame in events.split(rest.read_rest())]
        events.check([*seen, *frames])
        assert events.text_of(frames) == "Here I am."


def test_a_kill_loses_no_event_that_a_socket_received(tmp_path: Path, upstream: FakeUpstream) -> None:
    with OutliveServer(tmp_path, upstream.url) as server:
        model = upstream.model([text("Once "), text("upon "), HANG])
        with open_websocket(server.port) as socket:
            socket.create(model=model, input="Hi")
            seen = socket.until("response.output_text.delta")
            threading.Thread(target=server.kill).start()
            seen += socket.wait_end()
        server.restart()
        with HttpClient(server.port) as http, http.follow(seen[0]["response"]["id"]) as again:
            frames = events.split(again.read_rest())
        assert [frame.split(b"data: ")[1].strip().decode() for frame in frames][: len(seen)] == socket.texts
        assert events.read(frames[-1])["type"] == "response.incomplete"
