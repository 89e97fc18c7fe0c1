"""A file of an older Outlive is migrated, with the runs that were under way in it."""

from __future__ import annotations

import sqlite3
from importlib import resources
from pathlib import Path

import pytest

from outlive.storage.packing import JOURNAL_FORMAT, PACKED
from outlive.storage.queries import SCHEMA_VERSION
from outlive.storage.sqlite import SQL, connection

FOLDER = resources.files("outlive.storage.sqlite").joinpath("migrations")


def old_file(path: Path, version: int) -> sqlite3.Connection:
    """Make a database of an older schema version."""
    db = sqlite3.connect(path, isolation_level=None)
    for file in sorted(FOLDER.iterdir(), key=lambda file: file.name):
        if int(file.name[:4]) <= version:
            db.executescript(file.read_text())
    db.execute(f"PRAGMA user_version = {version}")
    return db


@pytest.mark.parametrize(("resumed_at", "notes"), [("[]", "{}"), ("[4,9]", '{"joints":[4,9]}')])
def test_resumption_points_of_running_responses_move_into_the_checkpoint(
    tmp_path: Path, resumed_at: str, notes: str
) -> None:
    db = old_file(tmp_path / "old.db", 1)
    db.execute("INSERT INTO leases VALUES (1, 'ann', 0, NULL, 1, 1, ?)", (resumed_at,))
    connection._migrate(db, "old.db")
    assert db.execute("SELECT notes FROM leases").fetchall() == [(notes,)]
    assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    db.close()


def test_a_response_that_was_queued_in_an_older_file_has_no_deadline(tmp_path: Path) -> None:
    db = old_file(tmp_path / "old.db", 15)
    columns = "response, owner, background, worker, fence, attempts, notes"
    db.execute(f"INSERT INTO leases ({columns}) VALUES (1, 'ann', 0, NULL, 0, 0, '{{}}')")
    connection._migrate(db, "old.db")
    assert db.execute(SQL["find_overdue"], (1e12, 9)).fetchall() == []
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {SQL['find_overdue']}", (1e12, 9))]
    assert plan[0] == "SEARCH l USING INDEX leases_overdue (deadline<?)"
    db.close()


def test_the_schema_version_is_the_number_of_the_last_migration() -> None:
    assert max(int(file.name[:4]) for file in FOLDER.iterdir()) == SCHEMA_VERSION


@pytest.mark.parametrize(
    ("name", "values", "range_"),
    [
        ("measure_unpacked", (10,), "ended_at>?"),
        ("find_unpacked", (1.0, 10), "ended_at<?"),
        ("expire_responses", (1.0, 10, None, "[]"), "ended_at<?"),
    ],
)
def test_ended_responses_are_found_by_their_index(
    tmp_path: Path, name: str, values: tuple[object, ...], range_: str
) -> None:
    db = old_file(tmp_path / "old.db", 5)
    connection._migrate(db, "old.db")
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {SQL[name]}", values)]
    assert [step.split(" ", 2)[2] for step in plan if "responses" in step] == [
        f"USING INDEX responses_ended (format=? AND {range_})"
    ]
    assert not any("SORT" in step or "B-TREE" in step for step in plan), plan
    db.close()


def test_statements_about_ended_responses_list_every_format_of_journals() -> None:
    formats = range(1, JOURNAL_FORMAT + 1)
    assert f"format IN ({', '.join(map(str, formats))})" in SQL["expire_responses"]
    unpacked = f"format IN ({', '.join(str(each) for each in formats if each != PACKED)})"
    assert unpacked in SQL["find_unpacked"] and unpacked in SQL["measure_unpacked"]


@pytest.mark.parametrize("version", [2, 4])
def test_items_of_an_older_file_are_found_by_their_ids_alone(tmp_path: Path, version: int) -> None:
    db = old_file(tmp_path / "old.db", version)
    db.execute("INSERT INTO items VALUES (1, 0, 'msg_1', NULL, x'7b7d')")
    connection._migrate(db, "old.db")
    plans = db.execute(f"EXPLAIN QUERY PLAN {SQL['find_items']}", ('["msg_1"]', "ann")).fetchall()
    assert [row[3] for row in plans if " i " in row[3]] == ["SEARCH i USING INDEX items_by_id (<expr>=? AND <expr>=?)"]
    assert db.execute(SQL["item_position"], (1, "msg_1")).fetchall() == [(0,)]
    db.close()


def test_what_was_hidden_in_an_older_file_is_erased_at_once(tmp_path: Path) -> None:
    db = old_file(tmp_path / "old.db", 5)
    columns = "id, owner, status, background, created_at, ended_at, hidden, thread, first, input_end, last, era"
    add = f"INSERT INTO responses ({columns}) VALUES (?, 'ann', 'completed', 0, 1, 2, ?, 1, 0, 0, 0, 0)"
    # Newer versions of SQLite use no index where there is a single row.
    db.executemany(add, [("resp_1", 1), *((f"kept_{n}", 0) for n in range(100))])
    connection._migrate(db, "old.db")
    db.execute("ANALYZE")  # with statistics that make the empty table of leases look like any other
    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {SQL['erasable_responses']}", (10,))]
    assert any("INDEX responses_deleted" in step for step in plan), plan
    assert "SCAN l" in plan and not any(step.startswith("SCAN o") for step in plan), plan
    assert [row[1] for row in db.execute(SQL["erasable_responses"], (10,))] == ["resp_1"]
    db.close()
