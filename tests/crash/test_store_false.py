"""`store: false` leaves no byte on disk: a canary is sent in every mode and searched for in all files (D4)."""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outlive.cli import app
from tests.crash.conftest import MakeServer
from tests.crash.disk_search import find_on_disk
from tests.support.http_client import HttpClient, text_of
from tests.support.upstream import CUT, HANG, FakeUpstream, Refuse, Step, call, ending, finish, reasoning, say, text
from tests.support.waiting import wait_until
from tests.wire.websocket import open_websocket

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")

CANARY = "canary-7f3a91c2"
STORED = "stored-51d0e8"  # it is stored, and so must be found

TOOLS = [
    {"type": "function", "name": "look", "description": CANARY, "parameters": {"type": "object", "properties": {}}},
    {"type": "custom", "name": "note", "description": CANARY},
]


def fields(**more: Any) -> dict[str, Any]:
    """Return a request with the canary in every field that can have it."""
    item = {"role": "user", "content": [{"type": "input_text", "text": f"Say {CANARY}"}]}
    return {
        "input": [item],
        "instructions": CANARY,
        "metadata": {"note": CANARY},
        "user": CANARY,
        "tools": TOOLS,
        "vendor_extra": CANARY,
        "store": False,
        **more,
    }


def make_answer() -> list[Step]:
    return [
        reasoning(f"Think of {CANARY}."),
        text(f"Here is {CANARY}. "),
        *(text(f"{CANARY} again {n}. ") for n in range(200)),
        call(0, f'{{"what": "{CANARY}"}}', "call_1", "look"),
        call(1, f'{{"input": "{CANARY}"}}', "call_2", "note"),
        *ending("tool_calls"),
    ]


def send_valid(client: HttpClient, upstream: FakeUpstream, stored: str, conversation: str) -> None:
    model = upstream.model(make_answer())
    for where in ({}, {"conversation": conversation}, {"previous_response_id": stored}):
        plain = client.create(model, **fields(**where))
        assert plain.status == 200 and CANARY in text_of(plain.json())
        with client.stream(model, **fields(**where)) as stream:
            assert stream.read_all().complete
        assert client.get(f"/v1/responses/{stream.id}").status == 404
    chat = {"model": model, "messages": [{"role": "user", "content": CANARY}], "stream": True}
    with client.open_stream("POST", "/v1/chat/completions", chat) as stream:
        assert stream.read_all().complete
    assert client.post("/v1/chat/completions", {**chat, "stream": False}).status == 200


def send_failing(client: HttpClient, upstream: FakeUpstream) -> None:
    error = {"error": {"message": f"I cannot say {CANARY}", "type": "x", "code": CANARY}}
    scripts: list[list[Step]] = [
        [Refuse(400, error)],
        [Refuse(401, error)],
        [Refuse(418, f"<html>{CANARY}</html>")],
        [text(f"{CANARY} and "), CUT],
        [text(f"{CANARY} and "), error],
        [{"choices": [{"index": 0, "delta": {"content": {"odd": CANARY}}, "finish_reason": None}]}, finish()],
        [f"data: {{not json {CANARY}\n\n".encode()],
        [{"choices": CANARY}],
        [text(f"{CANARY}")],  # no finish
    ]
    models = [upstream.model(script) for script in scripts]
    # All at once: those without visible output are retried after a pause.
    with ThreadPoolExecutor(3 * len(models)) as pool:
        jobs: list[Future[Any]] = []
        for model in models:
            chat = {"model": model, "messages": [{"role": "user", "content": CANARY}], "stream": True}
            jobs.append(pool.submit(client.create, model, **fields()))
            for path, body in (("/v1/responses", fields(model=model, stream=True)), ("/v1/chat/completions", chat)):
                jobs.append(
                    pool.submit(lambda path, body: client.open_stream("POST", path, body).read_all(), path, body)
                )
        for job in jobs:
            job.result()


def send_invalid(client: HttpClient, conversation: str) -> None:
    deep: Any = CANARY
    for _ in range(200):
        deep = [deep]
    invalid: list[Any] = [
        fields(model=1),
        fields(model=CANARY, background=True),
        fields(model=CANARY, temperature=CANARY),
        fields(model=CANARY, previous_response_id=CANARY),
        fields(model=CANARY, conversation=CANARY),
        fields(model=CANARY, input=[{"type": CANARY}]),
        fields(model=CANARY, input=[{"type": "function_call", "name": CANARY}]),
        fields(model=CANARY, input=deep),
        fields(model=CANARY, tools=[{"type": CANARY}]),
        fields(model=CANARY, text={"format": {"type": CANARY}}),
        fields(model=CANARY, thread_id=CANARY),
        [CANARY],
        f"{CANARY}".encode(),
        b'{"model": "' + CANARY.encode() + b"\xff",
    ]
    for body in invalid:
        assert client.post("/v1/responses", body).status in (400, 404), body
    key = client.post("/v1/responses", fields(model="any"), **{"idempotency-key": CANARY})
    assert key.status == 400
    assert client.post("/v1/responses", fields(model="any"), **{"content-type": "text/plain"}).status == 415
    for path in (f"/v1/{CANARY}", f"/v1/responses/{CANARY}", f"/v1/responses?after={CANARY}"):
        assert client.get(path).status in (400, 404)
    locked = {"model": "any", "conversation": conversation, "store": False, "stream": CANARY}
    assert client.post("/v1/responses", locked).status == 400


def send_over_websocket(port: int, upstream: FakeUpstream, stored: str) -> None:
    """A connection remembers unstored responses, in memory only."""
    model = upstream.model(make_answer())
    with open_websocket(port) as socket:
        for parent in (None, stored):
            first = socket.answer(model=model, **fields(previous_response_id=parent))["id"]
            second = socket.turn(model=model, **fields(previous_response_id=first, stream_id="lane"))[-1]["response"]
            assert CANARY in text_of(second)
            socket.answer(model=model, **fields(generate=False, previous_response_id=second["id"]))
            socket.refusal(model=model, **fields(previous_response_id=first, temperature=CANARY))
            socket.refusal(model=model, **fields(previous_response_id=second["id"], store=True))
        socket.connection.send(f"{{ {CANARY}")
        socket.send(type="response.steer", previous_response_id=stored, input=CANARY)
        socket.until("response.steer.failed")


def disconnect(client: HttpClient, upstream: FakeUpstream) -> None:
    model = upstream.model([text(f"{CANARY} "), text("..."), HANG])
    with client.stream(model, **fields()) as stream:
        stream.read_delta("...")
    upstream.wait_call(model).wait_disconnected()


def test_store_false_leaves_no_byte_on_disk(upstream: FakeUpstream, make_server: MakeServer, tmp_path: Path) -> None:
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    server = make_server("--log-level", "debug", TMPDIR=str(elsewhere)).start()
    client = server.client
    conversation = client.create_conversation()
    stored = client.create(upstream.model(say(STORED)), conversation=conversation).json()["id"]

    send_valid(client, upstream, stored, conversation)
    send_failing(client, upstream)
    send_invalid(client, conversation)
    send_over_websocket(server.port, upstream, stored)
    disconnect(client, upstream)
    model = upstream.model([text(f"{CANARY} "), HANG])
    with client.stream(model, **fields()) as interrupted:
        interrupted.read_until(lambda event: CANARY in event.get("delta", ""))
        assert find_on_disk(STORED.encode(), server, elsewhere), "the search finds stored data"
        assert find_on_disk(CANARY.encode(), server, elsewhere) == []
        server.kill()
    assert find_on_disk(CANARY.encode(), server, elsewhere) == []

    # Nothing was added to the conversation or to the list.
    server.start()
    assert len(client.list_items(conversation)) == 2
    assert [listed["id"] for listed in client.list_responses()] == [stored]
    assert server.terminate() == 0
    assert find_on_disk(CANARY.encode(), server, elsewhere) == []
    assert find_on_disk(STORED.encode(), server, elsewhere)


def test_an_owner_that_may_not_store_leaves_no_byte_on_disk(
    upstream: FakeUpstream, make_server: MakeServer, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "tmp"
    elsewhere.mkdir()
    server = make_server("--log-level", "debug", TMPDIR=str(elsewhere)).start()
    client = server.client
    conversation = client.create_conversation()
    stored = client.create(upstream.model(say(STORED)), conversation=conversation).json()["id"]
    policy = ["owners", "set", "local", "storage=never", "--database", server.database_url]
    assert CliRunner().invoke(app, policy).exit_code == 0
    harmless, model = upstream.model(say("Hi")), upstream.model(make_answer())
    wait_until(lambda: client.create(harmless, input="Hi").json()["store"] is False, "the policy holds")

    large = [{"role": "user", "content": CANARY + "x" * 5_000_000}]
    for more in ({}, {"store": True}, {"previous_response_id": stored}, {"input": large}):
        body = {**fields(), "store": None, **more}
        assert client.create(model, **body).status == 200
        with client.stream(model, **body) as stream:
            assert stream.read_all().complete
    for more in ({"background": True}, {"conversation": conversation}, {"background": True, "input": large}):
        assert client.create(model, **{**fields(), "store": None, **more}).status == 400
    items = {"items": [{"role": "user", "content": CANARY}]}
    for path, sent in (
        ("", items),
        (f"/{conversation}/items", items),
        (f"/{conversation}", {"metadata": {"a": CANARY}}),
    ):
        assert client.post(f"/v1/conversations{path}", sent).error["code"] == "storage_not_allowed"
    with open_websocket(server.port) as socket:
        socket.answer(model=model, **{**fields(), "store": None})
    assert find_on_disk(STORED.encode(), server, elsewhere), "the search finds stored data"
    assert find_on_disk(CANARY.encode(), server, elsewhere) == []
    server.kill()
    assert find_on_disk(CANARY.encode(), server, elsewhere) == []
