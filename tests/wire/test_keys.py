"""Keys that are made and revoked while the server runs, by the command or by its routes; and what each role may do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outlive.cli import app
from outlive.http.routes import ROUTES
from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, ending, say, text
from tests.wire.conftest import Servers
from tests.wire.websocket import open_websocket

# Within which a change in the database counts on every node. To ask before would be to send wrong keys, which are
# answered more and more slowly.
PROMISED_SECONDS = 1.0
OPS = "the-key-of-the-admin-ops"


def run(*words: str) -> str:
    """Run a command and return its standard output."""
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.stdout


def make(server: OutliveServer, *words: str) -> dict[str, Any]:
    """Make a key in the database of a running server, and wait until the server knows it."""
    made: dict[str, Any] = json.loads(run("keys", "new", *words, "--json", "--database", server.database_url))
    time.sleep(PROMISED_SECONDS)
    with HttpClient(server.port, made["key"]) as http:
        assert http.get("/v1/models").status == 200
    return made


@pytest.fixture
def server(servers: Servers) -> OutliveServer:
    return servers("--api-key", f"ops={OPS}", "--api-key", "anna=anna-key-of-the-settings", "--admin", "ops")


@pytest.fixture
def ops(server: OutliveServer) -> Iterator[HttpClient]:
    with HttpClient(server.port, OPS) as http:
        yield http


def test_a_key_made_in_the_database_of_a_running_server_is_valid_until_it_is_revoked(
    server: OutliveServer, upstream: FakeUpstream
) -> None:
    made = make(server, "--owner", "carl")
    with HttpClient(server.port, made["key"]) as carl, HttpClient(server.port, "anna-key-of-the-settings") as anna:
        response = carl.create(model=upstream.model(), input="Hi").json()
        assert carl.get(f"/v1/responses/{response['id']}").status == 200
        assert anna.get(f"/v1/responses/{response['id']}").status == 404
        assert "is revoked" in run("keys", "revoke", made["id"], "--database", server.database_url)
        time.sleep(PROMISED_SECONDS)
        assert carl.get("/v1/models").error["code"] == "invalid_api_key"
        assert anna.get("/v1/models").status == 200
    listed = run("keys", "list", "--database", server.database_url)
    (line,) = [line.split("\t") for line in listed.splitlines() if line.startswith(made["id"])]
    assert line[1:3] == ["carl", "user"] and all(line[at] for at in (3, 6)) and not line[5]
    assert made["key"] not in listed


def test_a_server_that_had_a_key_needs_one_though_the_keys_owner_was_erased(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    with OutliveServer(tmp_path, upstream.url) as server:
        made = make(server, "--owner", "carl")
        run("owners", "erase", "carl", "--database", server.database_url)
        time.sleep(PROMISED_SECONDS)
        for key in (None, made["key"]):
            with HttpClient(server.port, key) as http:
                assert http.get("/v1/models").error["code"] == "invalid_api_key"
        server.kill()
        server.start()
        with HttpClient(server.port) as http:
            assert http.get("/v1/models").status == 401


def test_an_admin_makes_lists_and_revokes_keys_on_a_running_server(server: OutliveServer, ops: HttpClient) -> None:
    address = ("--server", server.url, "--key", OPS)
    key = run("keys", "new", "--owner", "dora", "--role", "read", "--expires", "7", *address).strip()
    with HttpClient(server.port, key) as dora:
        assert dora.get("/v1/models").status == 200  # on this node at once
    (shown,) = [each for each in json.loads(run("keys", "list", "--json", *address))["data"] if each["owner"] == "dora"]
    assert (shown["role"], shown["expires_at"] - shown["created_at"]) == ("read", 7 * 86_400)
    assert run("keys", "revoke", shown["id"], *address) == f"{shown['id']} is revoked\n"
    with HttpClient(server.port, key) as dora:
        assert dora.get("/v1/models").status == 401
    assert ops.delete("/v1/keys/key_none").status == 404
    lines = run("audit", "--limit", "2", *address).splitlines()
    assert [line.split("\t")[1:4] for line in lines[1:]] == [
        ["ops", "key.revoked", shown["id"]],
        ["ops", "key.created", shown["id"]],
    ]
    assert json.loads(run("audit", "--json", "--database", server.database_url))["data"][0]["subject"] == shown["id"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "owner"),
        ({"owner": "a b"}, "owner"),
        ({"owner": "e", "role": "root"}, "role"),
        ({"owner": "e", "expires_in_days": 0}, "expires_in_days"),
        ({"owner": "e", "acts_for": "yes"}, "acts_for"),
    ],
)
def test_a_wrong_request_for_a_key_names_the_field(ops: HttpClient, body: dict[str, Any], param: str) -> None:
    answer = ops.post("/v1/keys", body)
    assert (answer.status, answer.error["param"]) == (400, param)


def test_only_an_admin_may_use_the_routes_for_admins(server: OutliveServer) -> None:
    admin, user = (make(server, "--owner", "emil", "--role", role)["key"] for role in ("admin", "user"))
    for key, status in ((admin, 200), (user, 403)):
        with HttpClient(server.port, key) as http:
            for path in ("/v1/keys", "/v1/audit", "/metrics"):
                answer = http.get(path, host="elsewhere.example", **{"x-forwarded-for": "192.0.2.9"})
                assert answer.status == status, path
                assert status == 200 or answer.error["code"] == "admin_required"
                # The command that makes the first admin's key is one that needs no admin's key.
                assert status == 200 or "`outlive keys new --role admin --database URL`" in answer.error["message"]
    with HttpClient(server.port, user) as http:
        assert http.post("/v1/keys", {"owner": "emil", "role": "admin"}).status == 403
        assert http.delete("/v1/keys/key_none").status == 403


def test_a_read_key_may_only_get(server: OutliveServer, upstream: FakeUpstream) -> None:
    keys = [make(server, "--owner", "fred", "--role", role)["key"] for role in ("user", "read")]
    with HttpClient(server.port, keys[0]) as user, HttpClient(server.port, keys[1]) as reader:
        made = user.create(model=upstream.model(), input="Hi").json()
        assert reader.get(f"/v1/responses/{made['id']}").json() == made
        for method, path in (
            (route.method, re.sub(r"{\w+}", made["id"], route.path)) for route in ROUTES if route.method != "GET"
        ):
            answer = reader.request(method, path, {} if method == "POST" else None)
            assert (answer.status, answer.error["code"]) == (403, "read_only_key")
            assert "role read" in answer.error["message"]
    with pytest.raises(Exception, match="403"), open_websocket(server.port, key=keys[1]):
        pass


def test_a_revoked_key_cuts_its_streams_and_websockets(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate = Gate()
    made = make(server, "--owner", "gina")
    spare = make(server, "--owner", "gina")
    model = upstream.model([text("Once "), gate, *ending()])
    with HttpClient(server.port, made["key"]) as gina, open_websocket(server.port, key=made["key"]) as socket:
        stream = gina.open_stream("POST", "/v1/responses", {"model": model, "input": "Hi", "stream": True})
        stream.read_delta("Once ")
        talk = {"model": upstream.model([text("Once "), HANG]), "messages": [{"role": "user", "content": "Hi"}]}
        chat = gina.open_stream("POST", "/v1/chat/completions", {**talk, "stream": True})
        assert b"Once " in (chat.read() or b"")
        with HttpClient(server.port, OPS) as ops:
            assert ops.delete(f"/v1/keys/{made['id']}").status == 200
        assert stream.read() is None and stream.cut
        assert chat.read() is None and chat.cut
        assert socket.wait_close()[0] == 1008
        stream.close()
        chat.close()
    with HttpClient(server.port, spare["key"]) as gina:
        (running,) = gina.get("/v1/responses?status=in_progress").json()["data"]
        gate.open()
        assert gina.wait_ended(running["id"])["status"] == "completed"


SECRET = "a-word-of-the-content"


def test_a_key_that_is_revoked_while_it_waits_is_shown_nothing(server: OutliveServer, upstream: FakeUpstream) -> None:
    gate, made = Gate(), make(server, "--owner", "hans")
    model = upstream.model([text("Once "), gate, *ending()])
    with (
        HttpClient(server.port, made["key"]) as hans,
        HttpClient(server.port, OPS) as ops,
        ThreadPoolExecutor(1) as pool,
    ):
        path = f"/v1/responses/{hans.submit(model)}"
        gate.wait_reached()
        waiting = pool.submit(hans.get, f"{path}?wait=30")
        time.sleep(0.2)  # it waits by then; otherwise it is refused at once
        assert ops.delete(f"/v1/keys/{made['id']}").status == 200
        gate.open()
        assert waiting.result().status == 401


def fill(server: OutliveServer, upstream: FakeUpstream) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a response and a conversation of an end user, with the word in all of their content."""
    key = make(server, "--owner", "hugo", "--acts-for")["key"]
    with HttpClient(server.port, key) as hugo:
        headers = {"Outlive-End-User": "user-1"}
        about = {"metadata": {"topic": SECRET}}
        items = [{"role": "user", "content": SECRET}]
        conversation = hugo.post("/v1/conversations", {**about, "items": items}, **headers).json()
        body = {**about, "input": SECRET, "instructions": SECRET, "user": SECRET, "conversation": conversation["id"]}
        response = hugo.post("/v1/responses", {"model": upstream.model(say(SECRET)), **body}, **headers).json()
        hugo.post("/v1/responses", {"model": upstream.model(say(SECRET)), "input": SECRET})
    return response, conversation


def test_an_admin_lists_what_is_of_all_owners_without_its_content(
    server: OutliveServer, ops: HttpClient, upstream: FakeUpstream
) -> None:
    response, conversation = fill(server, upstream)
    for owner in ("hugo", "*"):
        answer = ops.get(f"/v1/responses?owner={owner}&limit=100&details=true")
        (found,) = [each for each in answer.json()["data"] if each["id"] == response["id"]]
        assert (found["outlive"]["owner"], found["outlive"]["end_user"]) == ("hugo", "user-1")
        assert (found["status"], found["usage"]) == ("completed", response["usage"])
        listed = ops.get(f"/v1/conversations?owner={owner}&limit=100")
        (shown,) = [each for each in listed.json()["data"] if each["id"] == conversation["id"]]
        assert shown["outlive"] == {"owner": "hugo", "end_user": "user-1"}
        assert SECRET.encode() not in answer.body + listed.body
    assert len(ops.get("/v1/responses?owner=hugo").json()["data"]) == 2
    newest, older = ops.get("/v1/responses?owner=hugo").json()["data"]
    (after,) = ops.get(f"/v1/responses?owner=hugo&limit=1&after={newest['id']}").json()["data"]
    assert after["id"] == older["id"] == response["id"]
    assert ops.get("/v1/responses?owner=hug").json()["data"] == []
    assert ops.get("/v1/responses").json()["data"] == []
    for path in (f"/v1/responses/{response['id']}", f"/v1/conversations/{conversation['id']}/items"):
        assert ops.get(path).status == 404
    with HttpClient(server.port, "anna-key-of-the-settings") as anna:
        for path in ("/v1/responses?owner=*", "/v1/conversations?owner=hugo", "/v1/responses?owner=anna"):
            assert (anna.get(path).status, anna.get(path).error["code"]) == (403, "admin_required")


def test_an_admin_reads_content_if_a_setting_says_so(servers: Servers, upstream: FakeUpstream) -> None:
    server = servers("--api-key", f"ops={OPS}", "--admin", "ops", "--admin-reads-content")
    response, conversation = fill(server, upstream)
    user = make(server, "--owner", "ina")["key"]
    with HttpClient(server.port, OPS) as ops, HttpClient(server.port, user) as ina:
        for path in (
            f"/v1/responses/{response['id']}",
            f"/v1/responses/{response['id']}?stream=true",
            f"/v1/responses/{response['id']}/input_items",
            f"/v1/conversations/{conversation['id']}/items",
            "/v1/responses?owner=hugo",
        ):
            assert SECRET.encode() in ops.get(path).body
            assert ina.get(path).status in (403, 404)
        assert ops.delete(f"/v1/responses/{response['id']}").status == 404
        assert ops.post(f"/v1/conversations/{conversation['id']}", {"metadata": {}}).status == 404
