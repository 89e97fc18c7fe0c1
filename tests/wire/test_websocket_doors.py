"""Who may open a WebSocket, how long it lasts, how large its frames are, and how it is closed."""

from __future__ import annotations

import json
import socket as sockets
import threading
import time
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, ending, say, text
from tests.wire import events
from tests.wire.conftest import Servers
from tests.wire.raw import Json, Wire
from tests.wire.sockets import check_error, talk, text_of

KEYS = ("--api-key", "alice=sesame", "--api-key", "bob=mellon", "--websocket-seconds", "2")


def refused(port: int, **options: str) -> tuple[int, Json]:
    """The answer to a handshake that fails: status and error."""
    with pytest.raises(InvalidStatus) as error, talk(port, **options):
        pass
    response = error.value.response
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"] and response.headers["x-outlive-version"]
    body: Json = json.loads(response.body)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return response.status_code, body["error"]


# -- who


def test_a_key_is_asked_for_like_over_http(servers: Servers) -> None:
    port = servers(*KEYS).port
    assert refused(port)[0] == 401
    status, error = refused(port, key="wrong")
    assert (status, error["code"]) == (401, "invalid_api_key")
    with talk(port, key="sesame") as socket:
        assert socket.connection.response is not None
        assert socket.connection.response.headers["x-outlive-version"]


def test_what_is_stored_belongs_to_the_owner_of_the_key(servers: Servers, upstream: FakeUpstream) -> None:
    port, model = servers(*KEYS).port, upstream.model(say("one"), say("two"))
    with talk(port, key="sesame") as alice, talk(port, key="mellon") as bob:
        mine = alice.answer(model=model, input="Hi")["id"]
        other = bob.refusal(model=model, input="Hi", previous_response_id=mine)
        assert other["code"] == "previous_response_not_found"
        assert alice.answer(model=model, input="Hi", previous_response_id=mine)
    assert Wire(port, "sesame").get(f"/v1/responses/{mine}").status == 200
    assert Wire(port, "mellon").get(f"/v1/responses/{mine}").status == 404


def test_without_keys_no_page_of_another_origin_gets_in(server: OutliveServer) -> None:
    status, error = refused(server.port, origin="https://evil.example")
    assert (status, error["code"]) == (403, "forbidden_origin")
    with talk(server.port, origin=f"http://127.0.0.1:{server.port}"):
        pass


def test_there_is_a_websocket_in_one_place_only(server: OutliveServer) -> None:
    status, error = refused(server.port, path="/v1/conversations")
    assert (status, error["code"]) == (404, "unknown_url")


def test_a_query_is_no_hindrance(server: OutliveServer, upstream: FakeUpstream) -> None:
    with talk(server.port, path="/v1/responses?beta=true") as socket:
        assert socket.answer(model=upstream.model(), input="Hi")


def test_an_upgrade_that_is_no_websocket_is_an_ordinary_request(server: OutliveServer, wire: Wire) -> None:
    assert wire.get("/v1/responses", connection="upgrade", upgrade="h2c").status == 200


# -- how large


def test_a_frame_that_is_too_large_closes_the_connection(servers: Servers, upstream: FakeUpstream) -> None:
    server = servers("--max-body-bytes", "100000")
    with talk(server.port) as socket:
        assert socket.answer(model=upstream.model(), input="x" * 90_000)
        socket.create(model="m", input="x" * 110_000)
        assert socket.wait_close()[0] == 1009


def test_what_is_remembered_is_limited_too(servers: Servers, upstream: FakeUpstream) -> None:
    server, model = servers("--max-body-bytes", "100000"), upstream.model(say("."))
    with talk(server.port) as socket:
        old = socket.answer(model=model, input="x" * 50_000, store=False)["id"]
        new = socket.answer(model=model, input="x" * 50_000, store=False)["id"]
        gone = socket.refusal(model=model, input="2", store=False, previous_response_id=old)
        assert gone["code"] == "previous_response_not_found"
        assert socket.answer(model=model, input="2", store=False, previous_response_id=new)


def test_text_that_is_no_utf8_closes_the_connection(server: OutliveServer) -> None:
    with talk(server.port) as socket:
        socket.connection.send(b'{"type": "\xff"}', text=True)
        assert socket.wait_close()[0] == 1007


# -- how long


def test_an_idle_connection_is_closed_when_its_time_is_over(servers: Servers) -> None:
    with talk(servers(*KEYS).port, key="sesame") as socket:
        error = check_error(socket.frame())
        assert (error["status"], error["code"]) == (400, "websocket_connection_limit_reached")
        code, reason = socket.wait_close()
        assert code == 1001 and reason


def test_a_turn_that_is_under_way_may_end_but_no_other_begins(servers: Servers, upstream: FakeUpstream) -> None:
    gate = Gate()
    model = upstream.model([text("Once "), gate, text("upon a time."), *ending()])
    with talk(servers(*KEYS).port, key="sesame") as socket:
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


def test_a_client_that_reads_slowly_holds_nobody_up_and_gets_everything(
    server: OutliveServer, wire: Wire, upstream: FakeUpstream
) -> None:
    word = "x" * 5000
    model = upstream.model([*(text(word) for _ in range(1000)), *ending()])
    with talk(server.port) as socket:
        socket.connection.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 65536)
        socket.create(model=model, input="Hi")
        response_id = socket.frame()["response"]["id"]
        assert wire.get(f"/v1/responses/{response_id}?wait=20").json()["status"] == "completed"
        socket.rest()
    frames = [json.loads(frame) for frame in socket.texts]
    events.check(frames)
    assert events.text_of(frames) == word * 1000


# -- leaving


def test_a_server_that_leaves_closes_idle_connections_at_once(tmp_path: Path, upstream: FakeUpstream) -> None:
    with OutliveServer(tmp_path, upstream.url, "--grace-seconds", "10") as server:
        model = upstream.model([text("Once "), HANG])
        with talk(server.port) as idle, talk(server.port) as busy:
            busy.create(model=model, input="Hi", store=False)
            busy.until("response.output_text.delta")
            server.terminate(wait=False)
            assert idle.wait_close()[0] == 1012
            # No new turn begins on the other one, and none can connect.
            error = busy.refusal(model=model, input="Hi", stream_id="late")
            assert error["status"] == 503
            assert refused(server.port)[0] == 503


def test_a_stored_turn_survives_a_restart_and_is_resumed_over_http(tmp_path: Path, upstream: FakeUpstream) -> None:
    gate = Gate()
    with OutliveServer(tmp_path, upstream.url, "--grace-seconds", "1") as server:
        model = upstream.model([gate, HANG], say("Here ", "I am."))
        with talk(server.port) as socket:
            socket.create(model=model, input="Hi")
            seen = socket.until("response.in_progress")
            gate.wait_reached()
            server.terminate(wait=False)
            code, reason = socket.wait_close()
            assert code == 1012 and "resume" in reason
        server.wait_exit()
        server.start()
        response_id = seen[0]["response"]["id"]
        with Wire(server.port) as wire, wire.follow(response_id, after=seen[-1]["sequence_number"]) as rest:
            frames = [events.read(frame) for frame in events.split(rest.rest())]
        events.check([*seen, *frames])
        assert events.text_of(frames) == "Here I am."


def test_a_killed_server_loses_nothing_that_a_socket_has_seen(tmp_path: Path, upstream: FakeUpstream) -> None:
    with OutliveServer(tmp_path, upstream.url) as server:
        model = upstream.model([text("Once "), text("upon "), HANG])
        with talk(server.port) as socket:
            socket.create(model=model, input="Hi")
            seen = socket.until("response.output_text.delta")
            threading.Thread(target=server.kill).start()
            seen += socket.wait_end()
        server.restart()
        with Wire(server.port) as wire, wire.follow(seen[0]["response"]["id"]) as again:
            frames = events.split(again.rest())
        assert [frame.split(b"data: ")[1].strip().decode() for frame in frames][: len(seen)] == socket.texts
        assert events.read(frames[-1])["type"] == "response.incomplete"
