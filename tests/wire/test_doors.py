"""Who may come in, from where, with what; and that every refusal wears the same envelope."""

from __future__ import annotations

import json
import socket
import sqlite3
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Refuse, say
from tests.wire import events
from tests.wire.conftest import Servers
from tests.wire.raw import Wire

PAGE = "https://app.example.com"


# -- without keys: this machine's own programs only


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "localhost:7878", "LOCALHOST", "[::1]:80", "[::1]"])
def test_a_keyless_server_answers_to_this_machines_names(wire: Wire, host: str) -> None:
    assert wire.get("/v1/models", Host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example.com", "evil.example.com:7878", "localhost.example.com", "0.0.0.0", "127.0.0.1.nip.io", ""]
)
def test_a_keyless_server_answers_to_no_other_name(wire: Wire, upstream: FakeUpstream, host: str) -> None:
    model = upstream.model()
    for answer in (
        wire.get("/v1/models", Host=host),
        wire.post("/v1/responses", {"model": model, "input": "Hi"}, Host=host),
        wire.post("/v1/chat/completions", {"model": model, "messages": []}, Host=host),
    ):
        assert answer.status == 403
        assert answer.error["code"] == "forbidden_host"
        assert "--api-key" in answer.error["message"]
    assert upstream.calls(model) == []
    assert wire.get("/readyz", Host=host).status == 200  # a probe may use any name


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:1", "http://127.0.0.1"])
def test_no_web_page_drives_a_keyless_server(wire: Wire, upstream: FakeUpstream, origin: str) -> None:
    model = upstream.model()
    for answer in (
        wire.post("/v1/responses", {"model": model, "input": "Hi"}, Origin=origin),
        wire.post("/v1/responses/resp_1/cancel", Origin=origin),
        wire.delete("/v1/conversations/conv_1", Origin=origin),
        wire.get("/v1/responses", Origin=origin),
    ):
        assert answer.status == 403
        assert answer.error["code"] == "forbidden_origin"
        assert "access-control-allow-origin" not in answer.headers
    assert upstream.calls(model) == []


def test_a_page_of_the_server_itself_is_no_stranger(wire: Wire) -> None:
    assert wire.get("/v1/models", Origin=f"http://127.0.0.1:{wire.port}").status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_that_needs_no_preflight_is_not_read(wire: Wire, upstream: FakeUpstream, kind: str) -> None:
    model = upstream.model()
    body = json.dumps({"model": model, "input": "Hi", "messages": []}).encode()
    for path in ("/v1/responses", "/v1/conversations", "/v1/chat/completions"):
        answer = wire.post(path, body, Content_Type=kind)
        assert answer.status == 415
        assert answer.error["code"] == "unsupported_media_type"
    assert upstream.calls(model) == []


def test_a_content_type_may_have_parameters(wire: Wire, upstream: FakeUpstream) -> None:
    body = json.dumps({"model": upstream.model(), "input": "Hi"}).encode()
    assert wire.post("/v1/responses", body, Content_Type="Application/JSON; charset=utf-8").status == 200


# -- pages from elsewhere


@pytest.fixture
def open_door(servers: Servers) -> OutliveServer:
    return servers("--cors-origin", PAGE)


STAINLESS = ("x-stainless-lang", "x-stainless-retry-count", "x-stainless-timeout", "x-stainless-helper-method")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_preflight_allows_what_the_sdk_sends(open_door: OutliveServer, method: str) -> None:
    asked = ", ".join(("authorization", "content-type", "idempotency-key", *STAINLESS, "x-evil"))
    with Wire(open_door.port) as wire:
        answer = wire.ask(
            "OPTIONS",
            "/v1/responses",
            Origin=PAGE,
            Access_Control_Request_Method=method,
            Access_Control_Request_Headers=asked,
        )
    assert answer.status in (200, 204)
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert method in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert {"authorization", "content-type", "idempotency-key", *STAINLESS} == set(allowed)


def test_a_page_from_a_configured_origin_can_read_what_it_needs(
    open_door: OutliveServer, upstream: FakeUpstream
) -> None:
    with Wire(open_door.port) as wire:
        body = {"model": upstream.model(), "input": "Hi"}
        for answer in (
            wire.post("/v1/responses", body, Origin=PAGE),
            wire.post("/v1/responses", {**body, "background": True}, Origin=PAGE),
            wire.get("/v1/responses/resp_unknown", Origin=PAGE),
            wire.get("/nowhere", Origin=PAGE),
        ):
            assert answer.headers["access-control-allow-origin"] == PAGE
            exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
            assert {"x-request-id", "retry-after", "openai-poll-after-ms"} <= exposed
        with wire.open("POST", "/v1/responses", {**body, "stream": True}, Origin=PAGE) as stream:
            assert stream.headers["access-control-allow-origin"] == PAGE
            events.read_all(stream.rest())


def test_a_page_from_another_origin_gets_nothing(open_door: OutliveServer, upstream: FakeUpstream) -> None:
    other = "https://evil.example.com"
    with Wire(open_door.port) as wire:
        preflight = wire.ask("OPTIONS", "/v1/responses", Origin=other, Access_Control_Request_Method="POST")
        assert "access-control-allow-origin" not in preflight.headers
        model = upstream.model()
        answer = wire.post("/v1/responses", {"model": model, "input": "Hi"}, Origin=other)
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers
        assert upstream.calls(model) == []


def test_with_keys_every_name_will_do_and_a_preflight_needs_no_key(servers: Servers) -> None:
    guarded = servers("--api-key", "anna=key", "--cors-origin", "*")
    with Wire(guarded.port, "key") as wire:
        assert wire.get("/v1/models", Host="models.example.com", Origin=PAGE).status == 200
    with Wire(guarded.port) as stranger:
        preflight = stranger.ask("OPTIONS", "/v1/models", Origin=PAGE, Access_Control_Request_Method="GET")
        assert preflight.status in (200, 204)
        assert preflight.headers["access-control-allow-origin"] == PAGE
        refused = stranger.get("/v1/models", Origin=PAGE)
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == PAGE


# -- one envelope


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v2/responses", "/v1/responses/", "/v1/nothing", "/v1/responses/resp_1/nothing", "/favicon.ico"],
)
def test_an_unknown_path_is_a_404(wire: Wire, path: str) -> None:
    answer = wire.get(path)
    assert answer.status == 404
    assert path in answer.error["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/responses", {"GET", "POST"}),
        ("PATCH", "/v1/conversations/conv_1", {"GET", "POST", "DELETE"}),
        ("GET", "/v1/chat/completions", {"POST"}),
        ("POST", "/v1/models", {"GET"}),
        ("GET", "/v1/responses/resp_1/cancel", {"POST"}),
    ],
)
def test_a_wrong_method_is_a_405_that_names_the_right_ones(
    wire: Wire, method: str, path: str, allowed: set[str]
) -> None:
    answer = wire.ask(method, path)
    assert answer.status == 405
    assert answer.error["code"] == "method_not_allowed"
    assert set(answer.headers["allow"].split(", ")) - {"HEAD", "OPTIONS"} == allowed


@pytest.mark.parametrize(
    "path", ["/v1/responses/resp_x", "/v1/conversations/conv_x", "/v1/conversations/conv_x/items", "/v1/models/x/y"]
)
def test_an_unknown_thing_is_a_404(wire: Wire, path: str) -> None:
    answer = wire.get(path)
    assert answer.status == 404
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b'{"model": "m", "input": "\xff"}', "invalid_json"),
        (b"[1]", "invalid_type"),
        (b"null", "invalid_type"),
        (b'"text"', "invalid_type"),
        (b"{}", "missing_required_parameter"),
    ],
)
def test_a_body_that_is_no_request_is_a_400(wire: Wire, body: bytes, code: str) -> None:
    answer = wire.post("/v1/responses", body)
    assert answer.status == 400
    assert answer.error["code"] == code


def test_half_a_surrogate_pair_is_replaced(wire: Wire, upstream: FakeUpstream) -> None:
    model = upstream.model(say("ok"))
    answer = wire.post("/v1/responses", b'{"model": "%b", "input": "a\\ud83d b"}' % model.encode())
    assert answer.status == 200
    assert upstream.calls(model)[0].messages[0]["content"] == "a\ufffd b"


def test_a_422_of_the_upstream_stays_one(wire: Wire, upstream: FakeUpstream) -> None:
    answer = wire.create(model=upstream.model([Refuse(422)]), input="Hi")
    assert answer.status == 422
    assert answer.error["type"] == "invalid_request_error"


def test_our_own_mistake_is_a_500_with_an_id_and_without_details(upstream: FakeUpstream, tmp_path: Path) -> None:
    with OutliveServer(tmp_path, upstream.url) as server, Wire(server.port) as wire:
        conversation = wire.post("/v1/conversations", {}).json()["id"]
        with sqlite3.connect(server.database) as database:
            database.execute("UPDATE conversations SET metadata = ?", (b"not json",))
        database.close()
        answer = wire.get(f"/v1/conversations/{conversation}")
        assert answer.status == 500
        assert answer.error["type"] == "server_error"
        assert answer.headers["x-request-id"] in answer.error["message"]
        assert "json" not in answer.error["message"].lower()
        assert answer.headers["x-request-id"] in server.log
        assert wire.get("/v1/conversations/conv_unknown").status == 404  # and it goes on


def test_every_answer_has_a_request_id_of_its_own(wire: Wire) -> None:
    answers = [wire.get("/v1/models"), wire.get("/nowhere"), wire.get("/healthz"), wire.post("/v1/responses", b"{")]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == len(answers)
    assert all(each.startswith("req_") for each in ids)


def test_the_sdk_finds_the_request_id(client: OpenAI, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model(), input="Hi")
    assert made._request_id is not None and made._request_id.startswith("req_")


def test_rubbish_on_the_socket_does_not_hurt(wire: Wire) -> None:
    for rubbish in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", wire.port)) as raw:
            raw.sendall(rubbish)
            raw.recv(100)
    assert wire.get("/healthz").json() == {"status": "ok"}
    assert wire.get("/readyz").json() == {"status": "ready"}


def test_a_head_request_is_a_get_without_its_body(wire: Wire) -> None:
    answer = wire.ask("HEAD", "/v1/models")
    assert answer.status == 200
    assert answer.body == b""
