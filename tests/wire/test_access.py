"""Access: accepted host names, origins and content types, and the one envelope of all errors."""

from __future__ import annotations

import gzip
import json
import socket
import sqlite3
from pathlib import Path

import pytest
from openai import OpenAI

from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, Refuse, say
from tests.support.waiting import wait_until
from tests.wire import events
from tests.wire.conftest import Servers

PAGE = "https://app.example.com"


# -- without keys: only for programs of this machine


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "localhost:7878", "LOCALHOST", "[::1]:80", "[::1]"])
def test_a_keyless_server_accepts_local_host_names(http: HttpClient, host: str) -> None:
    assert http.get("/v1/models", Host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example.com", "evil.example.com:7878", "localhost.example.com", "0.0.0.0", "127.0.0.1.nip.io", ""]
)
def test_a_keyless_server_refuses_other_host_names(http: HttpClient, upstream: FakeUpstream, host: str) -> None:
    model = upstream.model()
    for answer in (
        http.get("/v1/models", Host=host),
        http.post("/v1/responses", {"model": model, "input": "Hi"}, Host=host),
        http.post("/v1/chat/completions", {"model": model, "messages": []}, Host=host),
    ):
        assert answer.status == 403
        assert answer.error["code"] == "forbidden_host"
        assert "--api-key" in answer.error["message"]
    assert upstream.calls(model) == []
    assert http.get("/readyz", Host=host).status == 200  # a probe may use any name


@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:1", "http://127.0.0.1"])
def test_a_keyless_server_refuses_requests_of_web_pages(http: HttpClient, upstream: FakeUpstream, origin: str) -> None:
    model = upstream.model()
    for answer in (
        http.post("/v1/responses", {"model": model, "input": "Hi"}, Origin=origin),
        http.post("/v1/responses/resp_1/cancel", Origin=origin),
        http.delete("/v1/conversations/conv_1", Origin=origin),
        http.get("/v1/responses", Origin=origin),
    ):
        assert answer.status == 403
        assert answer.error["code"] == "forbidden_origin"
        assert "access-control-allow-origin" not in answer.headers
    assert upstream.calls(model) == []


def test_a_keyless_server_accepts_its_own_origin(http: HttpClient) -> None:
    assert http.get("/v1/models", Origin=f"http://127.0.0.1:{http.port}").status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_body_of_another_content_type_is_refused_unread(http: HttpClient, upstream: FakeUpstream, kind: str) -> None:
    model = upstream.model()
    body = json.dumps({"model": model, "input": "Hi", "messages": []}).encode()
    for path in ("/v1/responses", "/v1/conversations", "/v1/chat/completions"):
        answer = http.post(path, body, Content_Type=kind)
        assert answer.status == 415
        assert answer.error["code"] == "unsupported_media_type"
    assert upstream.calls(model) == []


def test_a_content_type_with_parameters_is_accepted(http: HttpClient, upstream: FakeUpstream) -> None:
    body = json.dumps({"model": upstream.model(), "input": "Hi"}).encode()
    assert http.post("/v1/responses", body, Content_Type="Application/JSON; charset=utf-8").status == 200


def test_a_compressed_body_is_a_415_that_says_so(http: HttpClient, upstream: FakeUpstream) -> None:
    body = json.dumps({"model": upstream.model(), "input": "Hi"}).encode()
    answer = http.post("/v1/responses", gzip.compress(body), Content_Encoding="gzip")
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert "Content-Encoding" in answer.error["message"]
    assert http.post("/v1/responses", body, Content_Encoding="identity").status == 200


# -- web pages of other origins


@pytest.fixture
def open_door(servers: Servers) -> OutliveServer:
    return servers("--cors-origin", PAGE)


STAINLESS = ("x-stainless-lang", "x-stainless-retry-count", "x-stainless-timeout", "x-stainless-helper-method")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_preflight_allows_the_sdks_headers(open_door: OutliveServer, method: str) -> None:
    sdks = ("authorization", "content-type", "idempotency-key", "user-agent", *STAINLESS)
    with HttpClient(open_door.port) as http:
        answer = http.request(
            "OPTIONS",
            "/v1/responses",
            Origin=PAGE,
            Access_Control_Request_Method=method,
            Access_Control_Request_Headers=", ".join((*sdks, "x-evil")),
        )
    assert answer.status in (200, 204)
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert method in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert set(sdks) == set(allowed)


def test_a_configured_origin_may_read_answers_and_their_headers(
    open_door: OutliveServer, upstream: FakeUpstream
) -> None:
    with HttpClient(open_door.port) as http:
        body = {"model": upstream.model(), "input": "Hi"}
        for answer in (
            http.post("/v1/responses", body, Origin=PAGE),
            http.post("/v1/responses", {**body, "background": True}, Origin=PAGE),
            http.get("/v1/responses/resp_unknown", Origin=PAGE),
            http.get("/nowhere", Origin=PAGE),
        ):
            assert answer.headers["access-control-allow-origin"] == PAGE
            exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
            assert {"x-request-id", "retry-after", "x-should-retry", "openai-poll-after-ms"} <= exposed
        with http.open_stream("POST", "/v1/responses", {**body, "stream": True}, Origin=PAGE) as stream:
            assert stream.headers["access-control-allow-origin"] == PAGE
            events.read_all(stream.read_rest())


def test_another_origin_is_refused_without_cors_headers(open_door: OutliveServer, upstream: FakeUpstream) -> None:
    other = "https://evil.example.com"
    with HttpClient(open_door.port) as http:
        preflight = http.request("OPTIONS", "/v1/responses", Origin=other, Access_Control_Request_Method="POST")
        assert "access-control-allow-origin" not in preflight.headers
        model = upstream.model()
        answer = http.post("/v1/responses", {"model": model, "input": "Hi"}, Origin=other)
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers
        assert upstream.calls(model) == []


def test_a_server_with_keys_accepts_any_host_name_and_keyless_preflights(servers: Servers) -> None:
    guarded = servers("--api-key", "anna=key", "--cors-origin", "*")
    with HttpClient(guarded.port, "key") as http:
        assert http.get("/v1/models", Host="models.example.com", Origin=PAGE).status == 200
    with HttpClient(guarded.port) as stranger:
        preflight = stranger.request("OPTIONS", "/v1/models", Origin=PAGE, Access_Control_Request_Method="GET")
        assert preflight.status in (200, 204)
        assert preflight.headers["access-control-allow-origin"] == PAGE
        refused = stranger.get("/v1/models", Origin=PAGE)
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == PAGE


# -- errors


@pytest.mark.parametrize(
    "path",
    ["/v1", "/v2/responses", "/v1/responses/", "/v1/nothing", "/v1/responses/resp_1/nothing", "/favicon.ico"],
)
def test_an_unknown_path_is_a_404(http: HttpClient, path: str) -> None:
    answer = http.get(path)
    assert answer.status == 404
    assert path in answer.error["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/responses", "/v1/responses"),
        ("/conversations/conv_1/items", "/v1/conversations/conv_1/items"),
        ("/v1/v1/responses", "/v1/responses"),
        ("/v1/healthz", "/healthz"),
        ("/v1/responses/", "/v1/responses"),
    ],
)
def test_an_unknown_path_that_is_nearly_right_names_the_right_one(http: HttpClient, path: str, meant: str) -> None:
    assert http.get(path).error["message"] == f"There is no GET {path} here. Did you mean {meant}?"


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
    http: HttpClient, method: str, path: str, allowed: set[str]
) -> None:
    answer = http.request(method, path)
    assert answer.status == 405
    assert answer.error["code"] == "method_not_allowed"
    assert set(answer.headers["allow"].split(", ")) - {"HEAD", "OPTIONS"} == allowed


@pytest.mark.parametrize(
    "path", ["/v1/responses/resp_x", "/v1/conversations/conv_x", "/v1/conversations/conv_x/items", "/v1/models/x/y"]
)
def test_an_unknown_id_is_a_404(http: HttpClient, path: str) -> None:
    answer = http.get(path)
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
def test_an_invalid_body_is_a_400(http: HttpClient, body: bytes, code: str) -> None:
    answer = http.post("/v1/responses", body)
    assert answer.status == 400
    assert answer.error["code"] == code


def test_a_lone_surrogate_is_replaced(http: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model(say("ok"))
    answer = http.post("/v1/responses", b'{"model": "%b", "input": "a\\ud83d b"}' % model.encode())
    assert answer.status == 200
    assert upstream.calls(model)[0].messages[0]["content"] == "a\ufffd b"


def test_an_upstreams_422_is_passed_through(http: HttpClient, upstream: FakeUpstream) -> None:
    answer = http.create(model=upstream.model([Refuse(422)]), input="Hi")
    assert answer.status == 422
    assert answer.error["type"] == "invalid_request_error"


def test_an_internal_error_is_a_500_with_an_id_and_without_details(upstream: FakeUpstream, tmp_path: Path) -> None:
    with OutliveServer(tmp_path, upstream.url) as server, HttpClient(server.port) as http:
        conversation = http.post("/v1/conversations", {}).json()["id"]
        with sqlite3.connect(server.database) as database:
            database.execute("UPDATE conversations SET metadata = ?", (b"not json",))
        database.close()
        answer = http.get(f"/v1/conversations/{conversation}")
        assert answer.status == 500
        assert answer.error["type"] == "server_error"
        assert answer.headers["x-request-id"] in answer.error["message"]
        assert "json" not in answer.error["message"].lower()
        wait_until(lambda: answer.headers["x-request-id"] in server.log, "the error is in the log")
        assert http.get("/v1/conversations/conv_unknown").status == 404  # it still serves


def test_every_answer_has_its_own_request_id(http: HttpClient) -> None:
    answers = [http.get("/v1/models"), http.get("/nowhere"), http.get("/healthz"), http.post("/v1/responses", b"{")]
    ids = {answer.headers["x-request-id"] for answer in answers}
    assert len(ids) == len(answers)
    assert all(each.startswith("req_") for each in ids)


def test_the_sdk_reads_the_request_id(client: OpenAI, upstream: FakeUpstream) -> None:
    made = client.responses.create(model=upstream.model(), input="Hi")
    assert made._request_id is not None and made._request_id.startswith("req_")


def test_garbage_on_a_connection_does_not_harm_the_server(http: HttpClient) -> None:
    for rubbish in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", http.port)) as raw:
            raw.sendall(rubbish)
            raw.recv(100)
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ready"}


def test_a_head_request_is_answered_like_a_get_without_its_body(http: HttpClient) -> None:
    answer = http.request("HEAD", "/v1/models")
    assert answer.status == 200
    assert answer.body == b""
