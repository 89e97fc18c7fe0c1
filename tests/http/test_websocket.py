"""A WebSocket from inside: what it holds for a client that does not read, and the end of its time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from outlive.engine.budget import ByteBudget
from outlive.http.request import Message, Request
from outlive.http.websocket import Cache, CachedTurn, Socket
from outlive.ports.ledger import Memory
from outlive.testing import answer
from tests.engine.harness import Harness, run_with_harness
from tests.support.scripting import Gate


class Client:
    """The other side of the application's calls: frames to take, and what it was sent."""

    def __init__(self, harness: Harness) -> None:
        self.sent: list[Message] = []
        self.reads = asyncio.Event()  # cleared: the client's buffers are full
        self.reads.set()
        self._frames: asyncio.Queue[Message] = asyncio.Queue()
        self._frames.put_nowait({"type": "websocket.connect"})
        scope: dict[str, Any] = {"type": "websocket", "path": "/v1/responses", "headers": []}
        self.request = Request(scope, self._frames.get, self._send, harness.engine, 1 << 20)
        self.request.owner = "ann"

    def create(self, **body: Any) -> None:
        self.put({"type": "response.create", "model": "m", "input": "Hi", **body})

    def put(self, frame: object) -> None:
        self._frames.put_nowait({"type": "websocket.receive", "text": json.dumps(frame)})

    def leave(self) -> None:
        self._frames.put_nowait({"type": "websocket.disconnect", "code": 1006})

    @property
    def events(self) -> list[Any]:
        return [json.loads(message["text"]) for message in self.sent if message["type"] == "websocket.send"]

    async def wait(self, type_: str) -> None:
        while not any(event["type"] == type_ for event in self.events):
            await asyncio.sleep(0.001)

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        await self.reads.wait()


def test_a_client_that_does_not_read_is_sent_one_frame_and_no_more(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        client = Client(harness)
        running = asyncio.create_task(Socket(client.request, 60.0).run())
        await asyncio.sleep(0)
        client.reads.clear()
        client.create()
        await client.wait("response.created")
        assert (await harness.end(client.events[0]["response"]["id"]))["status"] == "completed"
        assert [event["type"] for event in client.events] == ["response.created"]
        client.reads.set()
        client.leave()
        await running
        assert client.sent[-1]["type"] == "websocket.send"  # a client that has left is sent no close frame

    run_with_harness(tmp_path, body, [answer(*("word " * 500).split())])


def test_a_turn_that_goes_on_for_too_long_is_cut_with_its_connection(tmp_path: Path) -> None:
    gate = Gate()

    async def body(harness: Harness) -> None:
        client = Client(harness)
        running = asyncio.create_task(Socket(client.request, 0.05, 0.1).run())
        client.create()
        await gate.reached.wait()
        await running
        assert client.events[-1]["error"]["code"] == "websocket_connection_limit_reached"
        assert (client.sent[-1]["type"], client.sent[-1]["code"]) == ("websocket.close", 1001)
        gate.open()
        final = await harness.end(client.events[0]["response"]["id"])  # it is stored, and runs on
        assert final["status"] == "completed"

    run_with_harness(tmp_path, body, [gate, answer("Hello")])


def test_a_client_that_does_not_read_cannot_keep_its_connection_open(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("outlive.http.websocket.CLOSE_SECONDS", 0.05)

    async def body(harness: Harness) -> None:
        client = Client(harness)
        running = asyncio.create_task(Socket(client.request, 0.05).run())
        await asyncio.sleep(0.01)
        client.reads.clear()
        await running
        assert [message["type"] for message in client.sent] == ["websocket.accept", "websocket.send"]

    run_with_harness(tmp_path, body, [answer("Hello")])


def test_a_mistake_of_the_server_ends_a_turn_and_not_the_connection(tmp_path: Path, caplog: Any) -> None:
    async def body(harness: Harness) -> None:
        client = Client(harness)
        running = asyncio.create_task(Socket(client.request, 60.0).run())
        check, harness.backend.check = harness.backend.check, _fail  # type: ignore[method-assign]
        client.create(stream_id="a")
        await client.wait("error")
        error = client.events[0]
        assert (error["status"], error["stream_id"], error["error"]["code"]) == (500, "a", "server_error")
        assert client.request.request_id in error["error"]["message"] and "secret" not in error["error"]["message"]
        harness.backend.check = check  # type: ignore[method-assign]
        client.create(stream_id="a")
        await client.wait("response.completed")
        client.leave()
        await running

    run_with_harness(tmp_path, body, [answer("Hello")])
    assert "turn failed" in caplog.text


def _fail(request: object) -> None:
    raise ZeroDivisionError("secret")


def test_all_connections_of_an_owner_remember_together_as_much_as_its_budget() -> None:
    memory, budget = Memory([]), ByteBudget(100)
    first, second = Cache(80, budget, "ann"), Cache(80, budget, "ann")
    first.keep("resp_1", CachedTurn(memory, None, 60))
    second.keep("resp_2", CachedTurn(memory, None, 60))
    assert first.find("resp_1") and not second.find("resp_2")
    first.keep("resp_3", CachedTurn(memory, None, 70))
    assert first.find("resp_3") and not first.find("resp_1")
    first.clear()
    second.keep("resp_2", CachedTurn(memory, None, 60))
    assert second.find("resp_2")
    second.clear()
    assert budget.take("ann", 100)
