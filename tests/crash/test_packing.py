"""A kill at any point of packing loses no event: every replay is byte for byte the same."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.crash.conftest import MakeServer
from tests.support.postgres import DATABASES
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, say
from tests.support.waiting import wait_until

# On Postgres, the rows go in the transaction that packs them.
STEPS = {"sqlite": ("pack", "release"), "postgres": ("pack",)}
POINTS = [(kind, f"{when}-commit-of-{step}") for kind in STEPS for when in ("before", "after") for step in STEPS[kind]]
BLOCKS = "SELECT count(*) FROM packs"
PACKED = "SELECT count(*) FROM responses WHERE format = 2 AND NOT EXISTS (SELECT 1 FROM events)"


def count(server: OutliveServer, query: str) -> int:
    if server.database_url.startswith("postgres"):
        name = server.database_url.rpartition("/")[2]
        return int(DATABASES.server.sql(f"SET search_path = outlive; {query}", name))
    with closing(sqlite3.connect(server.database)) as db:
        return int(db.execute(query).fetchone()[0])


@pytest.mark.parametrize(("kind", "point"), POINTS)
def test_a_kill_while_packing_changes_no_replay(
    upstream: FakeUpstream, make_server: MakeServer, kind: str, point: str
) -> None:
    server = make_server(on=kind).start(OUTLIVE_PACK_AFTER="never")
    words = [f"word {n} " for n in range(60)]
    ids = []
    for _ in range(3):
        with server.client.stream(upstream.model(say(*words))) as stream:
            stream.read_all()
        ids.append((stream.id, stream.frames))
    server.kill()
    server.launch(OUTLIVE_PACK_AFTER="0.1", OUTLIVE_KILL_AT=point)
    assert server.wait_exit() == -9
    server.start(OUTLIVE_PACK_AFTER="never")
    for response_id, frames in ids:
        assert server.client.replay(response_id) == frames
    assert (count(server, BLOCKS) == 0) == (point == "before-commit-of-pack")
    server.kill()
    server.start(OUTLIVE_PACK_AFTER="0.1")
    wait_until(lambda: count(server, PACKED) == len(ids), "all journals are packed")
    for response_id, frames in ids:
        assert server.client.replay(response_id) == frames
