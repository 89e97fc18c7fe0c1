"""The promises that ARCHITECTURE.md prints, one test each, under the same names."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlive.adapters.backends.scripted import Gate as Stop
from outlive.adapters.backends.scripted import answer
from outlive.core.errors import StaleFence
from outlive.engine.live import Live
from outlive.ports.ledger import Closing, Entry
from tests.crash.checker import check_ended
from tests.crash.client import Client, Json
from tests.crash.stories import remaining, tell, words
from tests.crash.traces import find
from tests.engine.rig import Rig, play
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, Refuse, Script, Step, ending, say, text

BEGUN = "response.output_text.delta"


@pytest.fixture(scope="module")
def upstream() -> Iterator[FakeUpstream]:
    with FakeUpstream() as fake:
        yield fake


@pytest.fixture
def server(tmp_path: Path, upstream: FakeUpstream) -> Iterator[OutliveServer]:
    """A server whose upstream can go on in an answer that was cut off."""
    config = tmp_path / "outlive.toml"
    config.write_text(f'[upstreams.scripted]\nurl = "{upstream.url}"\ncontinuation = "prefill"\n')
    with OutliveServer(tmp_path / "server", None, "--config", str(config)) as started:
        yield started


@pytest.fixture
def client(server: OutliveServer) -> Client:
    return Client(server.port)


def stored(server: OutliveServer, sql: str) -> list[tuple[bytes]]:
    """What the file itself says, asked past the server."""
    connection = sqlite3.connect(f"file:{server.database}?mode=ro", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def test_an_event_is_durable_before_any_client_sees_it(
    server: OutliveServer, client: Client, upstream: FakeUpstream
) -> None:
    model = upstream.model(tell(words(30), pause=0.005))
    with client.stream(model) as stream:
        while (frame := stream.read()) is not None:
            journal = b"".join(frames for (frames,) in stored(server, "SELECT frames FROM events ORDER BY first"))
            assert frame in journal
        assert stream.whole


def test_sequence_numbers_have_no_gap_and_no_repeat_across_workers(
    server: OutliveServer, client: Client, upstream: FakeUpstream
) -> None:
    asked = itertools.count(1)

    def choose(body: Json) -> Script:
        """A few words and then silence, three times; then the rest."""
        left = remaining(words(30), body)
        assert left is not None
        steps: list[Step] = [text(piece) for piece in left]
        return [*steps[:5], HANG] if next(asked) <= 3 else [*steps, *ending()]

    stream = client.stream(upstream.model(choose))
    stream.read_type(BEGUN)
    for _ in range(3):
        server.kill()
        stream.read_all()
        server.start()
        again = client.follow(stream.id, after=stream.last)
        again.read_type(BEGUN)
        stream.frames += again.frames
        again.close()
    body = check_ended(client, stream.id, stream.frames)
    assert body["status"] == "completed"
    assert body["outlive"]["attempts"] == 4


def test_a_stale_fence_can_write_nothing(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create()
        await stop.reached.wait()
        live = rig.lives.get(accepted.response_id)
        assert live is not None
        await rig.committer.settle(live)
        before = await rig.frames(accepted.response_id)
        stale = live.lease
        assert await rig.ledger.seize(accepted.response_id, "another") is not None
        entry = Entry(stale, len(before), 1, 0.0, b"event: x\ndata: {}\n\n")
        assert await rig.ledger.append([entry]) == [False]
        with pytest.raises(StaleFence):
            await rig.ledger.close(Closing(entry, "completed", b"{}", [], keep_turn=True))
        await rig.ledger.hand_back([stale])
        assert await rig.ledger.waiting() == {}
        assert await rig.frames(accepted.response_id) == before
        assert await rig.show(accepted.response_id) is None

    stop = Stop()
    play(tmp_path, scene, ["Hel", stop])


def test_a_wake_up_may_be_lost_without_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(rig: Rig) -> None:
        accepted = await rig.create()
        cursor = rig.reader.follow(accepted.response_id)
        seen = await cursor.read()
        with monkeypatch.context() as lossy:
            lossy.setattr(Live, "wake", lambda live: None)
            stop.open()
            # Everything is said and committed, and nobody is told.
            reading = asyncio.create_task(cursor.read())
            while len(await rig.frames(accepted.response_id)) < 4:
                await asyncio.sleep(0.001)
        while not cursor.ended:
            rig.lives.wake_all()  # what the server does every few seconds
            if reading.done():
                seen += reading.result()
                reading = asyncio.create_task(cursor.read())
            await asyncio.sleep(0.001)
        seen += await reading
        assert seen == b"".join(await rig.frames(accepted.response_id))

    stop = Stop()
    play(tmp_path, scene, [stop, answer("Hel", "lo")])


def test_a_replay_is_byte_identical_to_what_was_streamed(client: Client, upstream: FakeUpstream) -> None:
    model = upstream.model(say("Zwölf ", "Boxkämpfer\n\n", "\x00 \u2028 ", "👩‍🚀"))
    streamed = client.stream(model).read_all()
    assert streamed.whole
    for after in (None, *range(len(streamed.frames))):
        replayed = client.follow(streamed.id, after=after).read_all()
        assert replayed.whole
        assert replayed.frames == streamed.frames[0 if after is None else after + 1 :]


def test_after_a_terminal_event_nothing_follows(server: OutliveServer, client: Client, upstream: FakeUpstream) -> None:
    endless = upstream.model(tell(words(10_000), pause=0.01))
    ends: dict[str, str] = {
        "completed": client.create(upstream.model(say("Hello"))).body["id"],
        "incomplete": client.create(upstream.model([text("Hel"), *ending("length")])).body["id"],
        "failed": client.start(upstream.model([Refuse(400)])),
        "cancelled": client.start(endless),
    }
    client.ask("POST", f"/v1/responses/{ends['cancelled']}/cancel")
    frames: dict[str, list[bytes]] = {}
    for status, response_id in ends.items():
        assert check_ended(client, response_id)["status"] == status
        frames[response_id] = client.replay(response_id)
        assert client.ask("POST", f"/v1/responses/{response_id}/cancel").body["status"] == status
    server.kill()
    server.start()
    for response_id, before in frames.items():
        assert client.replay(response_id) == before


def test_a_conversation_changes_only_at_admission_at_the_end_or_by_its_own_endpoints(
    client: Client, upstream: FakeUpstream
) -> None:
    conversation = client.new_conversation()

    def texts() -> list[str]:
        return [item["content"][0]["text"] for item in client.items(conversation)]

    def begin(gate: Gate, question: str, **fields: Any) -> str:
        response_id = client.start(
            upstream.model([text("Hel"), gate, *say("lo")]), question, conversation=conversation, **fields
        )
        gate.wait_reached()
        return response_id

    first, second = Gate(), Gate()
    one = begin(first, "one")
    assert texts() == ["one"]  # from admission on
    first.open()
    client.wait_end(one)
    assert texts() == ["one", "Hello"]  # with the end
    client.create(upstream.model(say("unkept")), "not stored", conversation=conversation, store=False)
    client.create(upstream.model([Refuse(400)]), "fails", conversation=conversation)
    chained: Json = client.create(upstream.model(say("elsewhere")), "a fork", previous_response_id=one).body
    assert chained["status"] == "completed"
    assert texts() == ["one", "Hello"]
    two = begin(second, "two")
    assert client.ask("POST", f"/v1/responses/{two}/cancel").body["status"] == "cancelled"
    second.open()
    assert texts() == ["one", "Hello", "two", "Hel"]
    note = {"items": [{"role": "user", "content": "note"}]}
    added = client.ask("POST", f"/v1/conversations/{conversation}/items", note)
    assert texts() == ["one", "Hello", "two", "Hel", "note"]
    client.ask("DELETE", f"/v1/conversations/{conversation}/items/{added.body['data'][0]['id']}")
    client.ask("DELETE", f"/v1/responses/{one}")
    assert texts() == ["one", "Hello", "two", "Hel"]


def test_store_false_leaves_no_byte_on_disk(server: OutliveServer, client: Client, upstream: FakeUpstream) -> None:
    canary, bait = "canary-5b21", "bait-90fe"
    conversation = client.new_conversation()
    client.create(upstream.model(say(bait)), "kept", conversation=conversation)
    unkept: dict[str, Any] = {
        "store": False,
        "conversation": conversation,
        "metadata": {"note": canary},
        "instructions": canary,
    }
    model = upstream.model(say(*[f"{canary} "] * 50))
    assert canary in str(client.create(model, canary, **unkept).body)
    assert client.stream(model, canary, **unkept).read_all().whole
    assert client.create(upstream.model([Refuse(400)]), canary, **unkept).status == 400
    assert find(bait.encode(), server) != []  # so the search works
    assert find(canary.encode(), server) == []
    server.kill()
    assert find(canary.encode(), server) == []
