"""A kill at any point of packing loses no event: every replay is byte for byte the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.crash.conftest import MakeServer
from tests.support.upstream import FakeUpstream, say
from tests.support.waiting import wait_until

POINTS = [f"{when}-commit-of-{step}" for when in ("before", "after") for step in ("pack", "release")]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_while_packing_changes_no_replay(upstream: FakeUpstream, make_server: MakeServer, point: str) -> None:
    server = make_server("--pack-after", "1").start(OUTLIVE_KILL_AT=point)
    words = [f"word {n} " for n in range(60)]
    ids = []
    for _ in range(3):
        with server.client.stream(upstream.model(say(*words))) as stream:
            stream.read_all()
        ids.append((stream.id, stream.frames))
    assert server.wait_exit() == -9
    server.start()
    for response_id, frames in ids:
        assert server.client.replay(response_id) == frames

    def is_packed() -> bool:
        with closing(sqlite3.connect(server.database)) as db:
            packed = db.execute("SELECT count(*) FROM responses WHERE format = 2").fetchone()[0]
            return bool(packed == len(ids) and not db.execute("SELECT count(*) FROM events").fetchone()[0])

    wait_until(is_packed, "all journals are packed")
    for response_id, frames in ids:
        assert server.client.replay(response_id) == frames
