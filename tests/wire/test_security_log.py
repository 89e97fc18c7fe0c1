"""The security log of a real server: who was refused, what was deleted, and nothing of what was said."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, say
from tests.wire.websocket import open_websocket

ALICE, BOB = "key-of-alice-0123456789", "key-of-bob-0123456789"
OPS = "key-of-the-admin-ops-0123456789"
KEYS = ("--api-key", f"alice={ALICE}", "--api-key", f"bob={BOB}")


def do_what_is_logged(server: OutliveServer, upstream: FakeUpstream) -> dict[str, str]:
    """Have a server refuse and delete things. Returns their ids."""
    alice, bob, stranger = (HttpClient(server.port, key) for key in (ALICE, BOB, "guess-canary"))
    made = alice.create(model=upstream.model(say("canary")), input="canary").json()["id"]
    conversation = alice.create_conversation()
    for _ in range(3):
        assert stranger.get("/v1/models").status == 401
    assert bob.get(f"/v1/responses/{made}").status == 404
    assert bob.create(model="m", input="canary", previous_response_id=made).status == 400
    assert bob.post("/v1/responses", {"model": "m", "input": "x" * 20_000}).status == 413
    with open_websocket(server.port, key=BOB) as connection:
        connection.create(model="m", input="canary", previous_response_id=made)
        assert connection.frame()["error"]["code"] == "previous_response_not_found"
    with socket.create_connection(("127.0.0.1", server.port)) as raw, contextlib.suppress(OSError):
        raw.sendall(b"GET /" + b"x" * 100_000)
        while raw.recv(65536):
            pass
    assert alice.delete(f"/v1/responses/{made}").status == 200
    assert alice.delete(f"/v1/conversations/{conversation}").status == 200
    assert alice.delete("/v1/models").status == 405  # deletes nothing
    return {"response": made, "conversation": conversation}


def test_refusals_and_deletions_are_written_to_the_security_log(upstream: FakeUpstream, tmp_path: Path) -> None:
    file = tmp_path / "security.log"
    flags = (*KEYS, "--max-body-bytes", "10000", "--security-log", str(file))
    with OutliveServer(tmp_path / "server", upstream.url, *flags) as server:
        ids = do_what_is_logged(server, upstream)
        server.terminate()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert all({"time", "level", "logger"} <= set(line) for line in lines)
    deleted = [line for line in lines if line["message"] == "deleted"]
    assert [line["path"] for line in deleted] == [
        f"/v1/responses/{ids['response']}", f"/v1/conversations/{ids['conversation']}"
    ]  # fmt: skip
    assert all(line["owner"] == "alice" and line["request_id"].startswith("req_") for line in deleted)
    assert all(line["address"] == "127.0.0.1" for line in lines)

    def summary(line: dict[str, Any]) -> tuple[Any, ...]:
        return line["message"], line.get("owner"), line.get("code"), line["count"]

    assert {summary(line) for line in lines if "count" in line} == {
        ("key refused", None, "invalid_api_key", 3),
        ("unknown id", "bob", None, 3),
        ("limit hit", "bob", "request_too_large", 1),
        ("limit hit", None, "headers_too_large", 1),
    }
    assert "canary" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert "key refused" not in server.log


def test_the_use_of_an_expired_or_revoked_key_is_in_the_security_log_with_its_id(tmp_path: Path) -> None:
    file = tmp_path / "security.log"
    flags = ("--api-key", f"ops={OPS}", "--admin", "ops", "--security-log", str(file))
    with OutliveServer(tmp_path / "server", None, *flags) as server:
        with HttpClient(server.port, OPS) as ops:
            made = [ops.post("/v1/keys", {"owner": "carl", "expires_in_days": days}).json() for days in (1e-5, 1)]
            ops.delete(f"/v1/keys/{made[1]['id']}")
            ops.get("/v1/responses?ticket=wrong")  # its key is valid
        time.sleep(1.0)
        for key in made:
            with HttpClient(server.port, key["key"]) as http:
                assert [http.get("/v1/models").error["code"] for _ in range(2)] == ["invalid_api_key"] * 2
        server.terminate()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    refused = [
        (line.get("owner"), line["code"], line.get("key_id"), line["count"]) for line in lines if "count" in line
    ]
    assert refused == [
        (None, "invalid_ticket", None, 1),
        ("carl", "key_expired", made[0]["id"], 2),
        ("carl", "key_revoked", made[1]["id"], 2),
    ]
    assert not any(key["key"] in file.read_text() + server.log for key in made)


def test_without_a_file_the_security_log_is_part_of_the_log(upstream: FakeUpstream, tmp_path: Path) -> None:
    with OutliveServer(tmp_path, upstream.url, *KEYS, "--max-body-bytes", "10000") as server:
        do_what_is_logged(server, upstream)
        server.terminate()
    assert "key refused address=127.0.0.1 code=invalid_api_key count=3" in server.log
    assert "canary" not in server.log


BLOCKING = """
import time

async def blocking(request, context):
    time.sleep(0.5)
    return "done"
"""


def test_a_blocked_event_loop_is_in_the_security_log_too(tmp_path: Path) -> None:
    (tmp_path / "blocks.py").write_text(BLOCKING)
    file = tmp_path / "security.log"
    with OutliveServer(tmp_path, None, "--agent", "blocks:blocking", "--security-log", str(file)) as server:
        assert server.client.create("blocking").status == 200
        server.terminate()
    (line,) = [json.loads(line) for line in file.read_text().splitlines() if "blocks.py:5 blocking" in line]
    assert (line["level"], line["logger"]) == ("warning", "outlive.watchdog")


def test_a_security_log_that_cannot_be_written_is_refused_at_start(tmp_path: Path) -> None:
    with (
        pytest.raises(AssertionError, match=r"Cannot write the security log .*missing/security.log"),
        OutliveServer(tmp_path, None, "--security-log", str(tmp_path / "missing" / "security.log")),
    ):
        pass
