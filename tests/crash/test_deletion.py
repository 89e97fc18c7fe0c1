"""Deleted data is erased from all files, and responses that still need it are not harmed (D18, D22)."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.crash.conftest import MakeServer
from tests.crash.disk_search import find_in_database, find_on_disk
from tests.support.checks import check_ended, check_file
from tests.support.http_client import HttpClient, Json, text_of
from tests.support.server import OutliveServer
from tests.support.upstream import HANG, FakeUpstream, Gate, say, text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, which only Linux has")

SIZES = {"small": 1, "several pages": 300, "many overflow pages": 20_000}


def fill(needle: str, times: int) -> str:
    """Return a text that repeats the needle."""
    return " ".join(f"{needle} {n}" for n in range(times))


def wait_erased(needle: str, server: OutliveServer) -> None:
    wait_until(lambda: not find_in_database(needle.encode(), server), f"{needle} is erased from the database's files")
    assert find_on_disk(needle.encode(), server) == []


def assert_stored(needle: str, server: OutliveServer) -> None:
    assert find_in_database(needle.encode(), server), "the search finds stored data"


@pytest.fixture
def other_run(upstream: FakeUpstream, client: HttpClient) -> Iterator[None]:
    """Another run with a reader, at the same time."""
    with client.stream(upstream.model([text("Other "), text("things"), HANG])) as stream:
        stream.read_delta("things")
        yield


@pytest.mark.usefixtures("other_run")
def test_a_deleted_response_is_erased_from_all_files(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    for size, times in SIZES.items():
        needle = f"needle-{times}-"
        long = fill(needle, times)
        body = client.create(
            upstream.model(say(long, long)), input=long, instructions=long, metadata={"note": needle}
        ).json()
        assert text_of(body) == long + long
        assert_stored(needle, server)
        assert client.delete(f"/v1/responses/{body['id']}").status == 200, size
        assert client.get(f"/v1/responses/{body['id']}").status == 404
        assert client.get(f"/v1/responses/{body['id']}/input_items").status == 404
        assert client.get(f"/v1/responses/{body['id']}?stream=true").status == 404
        wait_erased(needle, server)


@pytest.mark.usefixtures("other_run")
def test_deleted_conversations_and_items_are_erased_from_all_files(server: OutliveServer, client: HttpClient) -> None:
    for times in SIZES.values():
        kept, gone = f"kept-{times}-", f"gone-{times}-"
        items = [{"role": "user", "content": fill(word, times)} for word in (kept, gone)]
        conversation = client.create_conversation(items=items, metadata={"topic": kept})
        assert_stored(gone, server)
        second = client.list_items(conversation)[1]["id"]
        assert client.delete(f"/v1/conversations/{conversation}/items/{second}").status == 200
        wait_erased(gone, server)
        assert len(client.list_items(conversation)) == 1
        assert_stored(kept, server)
        assert client.delete(f"/v1/conversations/{conversation}").status == 200
        assert client.get(f"/v1/conversations/{conversation}").status == 404
        wait_erased(kept, server)


def test_items_of_a_deleted_response_stay_until_their_conversation_is_deleted(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    conversation = client.create_conversation()
    private = {"instructions": "instruction-4711", "conversation": conversation}
    body = client.create(upstream.model(say("turn-4711")), input="question-4711", **private).json()
    client.delete(f"/v1/responses/{body['id']}")
    wait_erased("instruction-4711", server)
    assert [item["role"] for item in client.list_items(conversation)] == ["user", "assistant"]
    client.delete(f"/v1/conversations/{conversation}")
    wait_erased("turn-4711", server)
    wait_erased("question-4711", server)


def test_a_response_outlives_its_deleted_conversation(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    conversation = client.create_conversation(items=[{"role": "user", "content": "note-4712"}])
    body = client.create(upstream.model(say("turn-4712")), input="question-4712", conversation=conversation).json()
    client.delete(f"/v1/conversations/{conversation}")
    wait_erased("note-4712", server)
    assert client.retrieve(body["id"]) == body
    assert len(client.get(f"/v1/responses/{body['id']}/input_items").json()["data"]) == 1
    client.delete(f"/v1/responses/{body['id']}")
    wait_erased("turn-4712", server)
    wait_erased("question-4712", server)


def test_expired_data_is_erased_from_all_files(upstream: FakeUpstream, make_server: MakeServer) -> None:
    day = 86_400.0
    flags = ("--response-days", str(0.5 / day), "--conversation-days", str(0.5 / day), "--sweep-seconds", "0.1")
    server = make_server(*flags).start()
    client = server.client
    gate = Gate()
    running = client.submit(upstream.model([text("late-4713"), gate, *say("!")]))
    body = client.create(upstream.model(say(fill("old-4713", 500))), input=fill("asked-4713", 500)).json()
    conversation = client.create_conversation(items=[{"role": "user", "content": "note-4713"}])
    for path in (f"/v1/responses/{body['id']}", f"/v1/conversations/{conversation}"):
        wait_until(lambda path=path: client.get(path).status == 404, f"{path} is hidden")  # type: ignore[misc]
    let_a_day_pass(server)
    for needle in ("old-4713", "asked-4713", "note-4713"):
        wait_erased(needle, server)
    # A running response does not expire, however old it is.
    assert client.retrieve(running)["status"] == "in_progress"
    gate.open()
    wait_until(lambda: client.get(f"/v1/responses/{running}").status == 404, "it is hidden after its end")
    let_a_day_pass(server)
    wait_erased("late-4713", server)


def let_a_day_pass(server: OutliveServer) -> None:
    """Date back what has expired: it is erased a day later."""
    with closing(sqlite3.connect(server.database)) as db, db:
        for table in ("responses", "conversations"):
            db.execute(f"UPDATE {table} SET expired_at = expired_at - 86401 WHERE expired_at IS NOT NULL")


def test_a_chain_through_a_deleted_response_is_refused(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    ids: list[str] = []
    for n in range(4):
        parent = {"previous_response_id": ids[-1]} if ids else {}
        ids.append(
            client.create(upstream.model(say(f"answer-4714-{n}")), input=f"question-4714-{n}", **parent).json()["id"]
        )
    client.delete(f"/v1/responses/{ids[1]}")
    wait_erased("answer-4714-1", server)
    wait_erased("question-4714-1", server)
    for parent_id in ids[1:]:
        refused = client.create("any", previous_response_id=parent_id)
        assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
    model = upstream.model(say("fine"))
    assert client.create(model, previous_response_id=ids[0]).status == 200
    contents = [message["content"] for message in upstream.calls(model)[0].messages]
    assert contents == ["question-4714-0", "answer-4714-0", "Hi"]
    # The later ones can still be read.
    assert text_of(client.retrieve(ids[3])) == "answer-4714-3"
    assert len(client.get(f"/v1/responses/{ids[3]}/input_items").json()["data"]) == 1


def test_a_refused_large_request_is_erased_from_all_files(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    conversation = client.create_conversation()
    client.submit(upstream.model([HANG]), conversation=conversation)
    refused = client.create("any", input=fill("refused-4722", 50_000), conversation=conversation)
    assert refused.error["code"] == "conversation_locked"
    wait_erased("refused-4722", server)


def test_deleting_a_running_response_cancels_and_erases_it(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    conversation = client.create_conversation()
    model = upstream.model([text("begun-4715"), HANG])
    with client.stream(model, input="question-4715", conversation=conversation, instructions="order-4715") as stream:
        stream.read_delta("begun-4715")
        assert client.delete(f"/v1/responses/{stream.id}").status == 200
        stream.read_all()
        assert stream.complete and stream.events[-1]["type"] == "response.cancelled"
    upstream.wait_call(model).wait_disconnected()
    assert client.get(f"/v1/responses/{stream.id}").status == 404
    wait_erased("order-4715", server)
    # Its conversation is unlocked.
    after = client.create(upstream.model(say("Next")), conversation=conversation)
    assert after.status == 200


def test_a_response_ends_normally_after_its_conversation_is_deleted(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server("--sweep-seconds", "0.2").start()
    client = server.client
    gate = Gate()
    conversation = client.create_conversation(items=[{"role": "user", "content": "note-4716"}])
    with client.stream(upstream.model([text("Once "), gate, *say("upon")]), conversation=conversation) as stream:
        stream.read_delta("Once ")
        assert client.delete(f"/v1/conversations/{conversation}").status == 200
        assert client.get(f"/v1/conversations/{conversation}").status == 404
        gate.open()
        stream.read_all()
    body = check_ended(client, stream.id, stream.frames)
    assert (body["status"], text_of(body)) == ("completed", "Once upon")
    wait_erased("note-4716", server)
    client.delete(f"/v1/responses/{stream.id}")
    wait_erased("upon", server)


def test_deleted_history_is_kept_for_a_running_response_even_after_a_kill(
    upstream: FakeUpstream, server: OutliveServer, client: HttpClient
) -> None:
    first = client.create(upstream.model(say("answer-4717")), input="question-4717").json()["id"]
    gate = Gate()
    model = upstream.model([HANG], [gate, *say("I remember")])
    child = client.submit(model, input="Go on", previous_response_id=first)
    upstream.wait_call(model)
    client.delete(f"/v1/responses/{first}")
    server.restart()
    contents = [message["content"] for message in upstream.wait_call(model, 2).messages]
    assert contents == ["question-4717", "answer-4717", "Go on"]
    assert client.get(f"/v1/responses/{first}").status == 404
    gate.open()
    assert client.wait_ended(child)["status"] == "completed"
    client.delete(f"/v1/responses/{client.create(upstream.model(say('x'))).json()['id']}")  # wakes the sweeper
    wait_erased("answer-4717", server)


@pytest.mark.parametrize("point", ["before-commit-of-erase:2", "after-commit-of-erase:2"])
def test_a_kill_during_the_erasure_leaves_nothing_behind(
    point: str, upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server().start(OUTLIVE_KILL_AT=point)  # the first erasure is the one at the start
    client = server.client
    body: Json = client.create(upstream.model(say(fill("answer-4718", 2000)))).json()
    client.delete(f"/v1/responses/{body['id']}")
    assert server.wait_exit() == -9
    assert_stored("answer-4718", server)
    server.start()
    wait_erased("answer-4718", server)
    server.kill()
    check_file(server.database)


def test_a_reader_of_the_write_ahead_log_only_delays_the_erasure(
    upstream: FakeUpstream, make_server: MakeServer
) -> None:
    server = make_server("--sweep-seconds", "0.2").start()
    client = server.client
    body = client.create(upstream.model(say(fill("answer-4719", 2000)))).json()
    holder = sqlite3.connect(f"file:{server.database}?mode=ro", uri=True, isolation_level=None)
    try:
        holder.execute("BEGIN")
        holder.execute("SELECT count(*) FROM responses").fetchone()
        client.delete(f"/v1/responses/{body['id']}")
        time.sleep(2.5)  # longer than the erasure waits for other readers
        assert client.create(upstream.model(say("still here"))).status == 200
        assert_stored("answer-4719", server)
    finally:
        holder.close()
    wait_erased("answer-4719", server)
