"""Checks that must hold for every response after any crash, whatever clients had seen of it before."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.support.http_client import ENDED, TERMINAL, HttpClient, Json, event_of, text_of


def check_ended(client: HttpClient, response_id: str, seen: list[bytes] | None = None) -> Json:
    """Check that it ended once, and that its journal has no gap and no repeat and contains the bytes that were seen.

    Returns the response.
    """
    body = client.wait_ended(response_id)
    frames = client.replay(response_id)
    check_journal(frames, response_id)
    check_seen(client, response_id, frames, seen or [])
    last = event_of(frames[-1])
    assert last["type"] == f"response.{body['status']}"
    assert last["response"] == body
    check_text(frames, body)
    return body


def check_journal(frames: list[bytes], response_id: str) -> None:
    events = [event_of(frame) for frame in frames]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert [event["type"] in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    assert {event["response"]["id"] for event in events if "response" in event} == {response_id}
    added = [(event["output_index"], event["item"]["id"]) for event in events if event["type"].endswith("item.added")]
    done = [(event["output_index"], event["item"]["id"]) for event in events if event["type"].endswith("item.done")]
    assert sorted(added) == sorted(done), "every item is added once and done once"
    assert len(set(added)) == len(added)
    assert [item["id"] for item in events[-1]["response"]["output"]] == [item_id for _, item_id in sorted(done)]


def check_seen(client: HttpClient, response_id: str, frames: list[bytes], seen: list[bytes]) -> None:
    """Check that no event seen by a client is missing or different, and that a resumption goes on with the next one."""
    if not seen:
        return
    first = event_of(seen[0])["sequence_number"]
    assert frames[first : first + len(seen)] == seen
    last = first + len(seen) - 1
    resumed = client.follow(response_id, after=last).read_all()
    assert resumed.complete
    assert resumed.frames == frames[last + 1 :]


def check_text(frames: list[bytes], body: Json) -> None:
    """Check that the deltas add up to the items' text, however often the run was resumed."""
    deltas = [event["delta"] for event in map(event_of, frames) if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == text_of(body)


def check_conversation(client: HttpClient, conversation: str, responses: list[Json]) -> None:
    """Check that it contains the complete turns of its responses in their order, and that it is unlocked."""
    items = client.list_items(conversation)
    ids = [item["id"] for item in items]
    assert len(set(ids)) == len(ids)
    kept = [item["id"] for body in responses if body["status"] != "failed" for item in body["output"]]
    assert [item_id for item_id in ids if item_id in set(kept)] == kept
    # Adding an item takes the lock and releases it again, which is only possible while no run holds it.
    note = {"type": "message", "role": "user", "content": "unlocked?"}
    added = client.post(f"/v1/conversations/{conversation}/items", {"items": [note]})
    assert added.status == 200, added
    client.delete(f"/v1/conversations/{conversation}/items/{added.json()['data'][0]['id']}")


def check_file(database: Path) -> None:
    """Check that the file is sound, that no lease or lock is left, and that every response has ended."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM leases").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM conversations WHERE running IS NOT NULL").fetchone() == (0,)
        rows = connection.execute("SELECT DISTINCT status FROM responses").fetchall()
        assert {status for (status,) in rows} <= set(ENDED)
    finally:
        connection.close()
