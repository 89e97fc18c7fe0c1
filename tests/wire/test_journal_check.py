"""The check of all journals, which runs after every test, finds violations."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from outlive.storage.packing import lengthen
from tests.support import nesting
from tests.support.http_client import HttpClient
from tests.support.server import OutliveServer
from tests.support.upstream import FakeUpstream, reasoning, say

PIECE = b'"delta":"Hel"'


def test_the_journal_check_finds_a_lost_event(upstream: FakeUpstream, tmp_path: Path) -> None:
    model = upstream.model([reasoning("Hm."), *say("Hel", "lo")])
    with OutliveServer(tmp_path, upstream.url) as server, HttpClient(server.port) as http:
        for _ in range(3):
            assert http.create(model=model, input="Hi").status == 200
        server.kill()
        assert nesting.check_journals(server.database_url) == 3
        with sqlite3.connect(server.database) as db:
            rows = [(key, lengthen(frames)) for key, frames in db.execute("SELECT key, frames FROM events")]
            key, frames = next(row for row in rows if PIECE in row[1])
            db.execute("UPDATE events SET frames = ? WHERE key = ?", (frames.replace(PIECE, b'"delta":"Hal"'), key))
        db.close()
        with pytest.raises(AssertionError, match=r"resp_\w+: "):
            nesting.check_journals(server.database_url)
        server.database.unlink()
