"""`outlive migrate`, `outlive copy`, and the doctor's checks of Postgres."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from outlive.core.events import Json
from outlive.ports.ledger import Checkpoint, Idempotency
from outlive.storage import copy
from outlive.storage.postgres.durability import find_risks
from outlive.storage.queries import SCHEMA_VERSION
from outlive.storage.sqlite.connection import SqliteDatabase
from tests.cli.conftest import Run
from tests.conformance.harness import WRITTEN, StorageHarness, entry, message
from tests.conformance.storages import Storage, open_postgres, open_sqlite
from tests.support.postgres import DATABASES, PostgresServer
from tests.support.server import OutliveServer


@pytest.fixture
def empty() -> Iterator[str]:
    DATABASES.server.sql("CREATE DATABASE bare_cli")
    yield DATABASES.server.url("bare_cli")
    DATABASES.server.sql("DROP DATABASE bare_cli WITH (FORCE)")


async def fill(harness: StorageHarness) -> dict[str, Any]:
    """Store something of every kind."""
    conversation = await harness.converse("before", key="conversation key")
    odd = message("msg_\x00odd", "Hi\x00\n\N{PILE OF POO}") | {"x_vendor": {"deep": [1, None]}}
    await harness.answer(items=[odd], conversation=conversation)
    failed = await harness.answer("no", None, conversation=conversation, status="failed")
    assert (await harness.storage.packing.pack(harness.tick())).responses == 2
    chain = await harness.answer("one", key="k")
    await harness.answer("two", parent=chain)
    fork = await harness.answer("fork", parent=chain)
    large = await harness.answer(items=[message(f"big_{n}", f"{n}" * 300_000) for n in range(2)], large=True)
    running, lease = await harness.start("unfinished", conversation=conversation, retry_digest=b"body")
    await harness.ledger.append([entry(lease, 2, 3), entry(lease, 5, 2000)])
    await harness.ledger.save_checkpoint(lease, Checkpoint(resumed_at=[4]))
    deleted = await harness.answer("secret")
    await harness.ledger.delete("ann", deleted)
    await harness.storage.conversations.add_items(
        "ann", await harness.converse(), [message("m", "x")], 1.0, Idempotency("i", b"d")
    )
    return {"conversation": conversation, "fork": fork, "running": running, "large": large, "failed": failed}


async def check(harness: StorageHarness, made: dict[str, Any]) -> None:
    """Check that everything is there, and that the unfinished run continues."""
    assert await harness.texts_of(made["conversation"]) == ["before", "Hi\x00\n\N{PILE OF POO}", "answer", "unfinished"]
    _, again = await harness.admit(key="k")
    assert again.attached is not None
    _, on = await harness.admit("three", parent=made["fork"])
    assert await harness.history_of(on.position) == ["one", "answer", "fork", "answer"]
    assert await harness.storage.catalog.unanswered("ann", b"body", 0.0) == [made["running"]]
    claims = [claim for claim in await harness.claim() if claim.lease.response_id == made["running"]]
    (claim,) = claims
    assert (claim.attempts, claim.checkpoint.resumed_at, claim.lease.fence) == (2, [4], 2)
    assert await harness.ledger.append([entry(claim.lease, 2005)]) == [WRITTEN]
    await harness.close(claim.lease, first=2006)
    assert await harness.texts_of(made["conversation"]) == [
        *("before", "Hi\x00\n\N{PILE OF POO}", "answer", "unfinished", "answer")
    ]
    while await harness.storage.retention.erase(100):
        pass
    assert not await harness.storage.inspector.contains("secret")


def run_on(storage: Callable[[], Any], act: Callable[[StorageHarness], Awaitable[Any]], count: int = 0) -> Any:
    async def go() -> Any:
        async with storage() as opened:
            harness = StorageHarness(opened)
            harness._count = count
            return await act(harness)

    return asyncio.run(go())


@pytest.mark.parametrize("direction", ["to postgres", "to sqlite", "between postgres"])
def test_a_copy_has_everything_and_its_runs_continue(run: Run, tmp_path: Path, empty: str, direction: str) -> None:
    file, url = tmp_path / "outlive.db", f"sqlite:///{tmp_path / 'outlive.db'}"
    there = DATABASES.borrow(f"{tmp_path}")

    @asynccontextmanager
    async def at(where: str) -> AsyncIterator[Storage]:
        async with open_sqlite(file) if where == url else open_postgres(where) as storage:
            yield storage

    source, target = {
        "to postgres": (url, empty),
        "to sqlite": (there, url),
        "between postgres": (there, empty),
    }[direction]
    made = run_on(lambda: at(source), fill)
    done = run("copy", "--from", source, "--to", target)
    assert done.exit_code == 0, done.output
    assert "replay as before" in done.output
    run_on(lambda: at(target), lambda harness: check(harness, made), 1000)


def write_text(file: Path) -> None:
    file.write_text("Not a database, but longer than the header of one would be: " + 100 * "x")


def make_other(file: Path) -> None:
    """Write the database of another program."""
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")


@pytest.mark.parametrize(
    ("source", "make", "message"),
    [
        ("sqlite:///FOLDER/missing.db", None, "There is no database FOLDER/missing.db."),
        ("outlive.db", None, "must be written sqlite:///FILE"),
        ("mysql://host/name", None, "must be written sqlite:///FILE"),
        ("postgresql+asyncpg://host/name", None, "without a driver's name"),
        ("sqlite:///FOLDER", None, "is a folder"),
        ("sqlite:///FOLDER/outlive.db", write_text, "FOLDER/outlive.db cannot be opened: file is not a database."),
        ("sqlite:///FOLDER/outlive.db", make_other, "FOLDER/outlive.db is not a database of Outlive."),
        ("sqlite:///FOLDER/outlive.db", Path.touch, "FOLDER/outlive.db is not a database of Outlive."),
    ],
)
def test_copying_from_what_is_no_database_is_refused_and_makes_nothing(
    run: Run, tmp_path: Path, empty: str, source: str, make: Callable[[Path], object] | None, message: str
) -> None:
    file = tmp_path / "outlive.db"
    if make is not None:
        make(file)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = run("copy", "--from", source.replace("FOLDER", str(tmp_path)), "--to", empty)
    assert done.exit_code == 2, done.output
    assert message.replace("FOLDER", str(tmp_path)) in done.output
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert DATABASES.server.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'outlive'", "bare_cli") == "0"


def test_copying_to_a_database_that_is_not_empty_is_refused(run: Run, tmp_path: Path) -> None:
    url, target = f"sqlite:///{tmp_path / 'outlive.db'}", DATABASES.borrow(f"{tmp_path}")
    run_on(lambda: open_sqlite(tmp_path / "outlive.db"), fill)
    run_on(lambda: open_postgres(target), lambda harness: harness.answer())
    done = run("copy", "--from", url, "--to", target)
    assert done.exit_code == 2
    assert "not empty" in done.output


def test_copying_while_a_server_runs_is_refused(run: Run, tmp_path: Path, empty: str) -> None:
    async def go() -> Any:
        database = SqliteDatabase(str(tmp_path / "outlive.db"))
        try:
            return await asyncio.to_thread(run, "copy", "--from", f"sqlite:///{tmp_path / 'outlive.db'}", "--to", empty)
        finally:
            await database.close()

    done = asyncio.run(go())
    assert done.exit_code == 2
    assert "already running" in done.output


def test_copying_from_a_database_with_running_nodes_is_refused(run: Run, tmp_path: Path) -> None:
    source = DATABASES.borrow(f"{tmp_path}")
    DATABASES.server.sql(
        "INSERT INTO outlive.workers VALUES ('node-1', now(), now() + interval '1 minute')", source.rpartition("/")[2]
    )
    done = run("copy", "--from", source, "--to", f"sqlite:///{tmp_path / 'outlive.db'}")
    assert done.exit_code == 2
    assert "1 nodes are at work" in done.output


def test_a_copy_that_differs_is_reported(run: Run, tmp_path: Path, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run_on(lambda: open_sqlite(tmp_path / "outlive.db"), fill)
    move = copy._move

    async def lose_an_event(source: Any, target: Any, *rest: Any) -> Json:
        write = target.write

        async def leave_out(table: str, rows: list[Any]) -> None:
            await write(table, [row for row in rows if not (table == "events" and row[1] == 2)])

        target.write = leave_out
        return await move(source, target, *rest)

    monkeypatch.setattr(copy, "_move", lose_an_event)
    done = run("copy", "--from", f"sqlite:///{tmp_path / 'outlive.db'}", "--to", empty)
    assert done.exit_code == 1
    assert "did not arrive" in done.output


# -- migrating


def test_migrate_prints_the_old_and_the_new_schema(run: Run, tmp_path: Path, empty: str) -> None:
    for url in (f"sqlite:///{tmp_path / 'outlive.db'}", empty):
        assert f"from schema 0 to {SCHEMA_VERSION}" in run("migrate", "--database", url).output
        assert f"up to date (schema {SCHEMA_VERSION})" in run("migrate", "--database", url).output


def test_an_older_program_refuses_to_migrate_a_newer_schema(run: Run, tmp_path: Path, empty: str) -> None:
    with closing(sqlite3.connect(tmp_path / "outlive.db")) as db:
        db.execute("PRAGMA user_version = 99")
    run("migrate", "--database", empty)
    DATABASES.server.sql("UPDATE outlive.schema SET version = 99", "bare_cli")
    for url in (f"sqlite:///{tmp_path / 'outlive.db'}", empty):
        done = run("migrate", "--database", url)
        assert done.exit_code == 2
        assert "newer Outlive" in done.output


# -- the doctor


def findings(run: Run, url: str) -> dict[str, tuple[str, str]]:
    done = run("doctor", "--database", url, "--no-probe", "--json")
    (section,) = [section for section in json.loads(done.output)["sections"] if section["title"] == "Database"]
    return {finding["name"]: (finding["state"], finding["detail"]) for finding in section["findings"]}


def test_the_doctor_checks_postgres(run: Run, tmp_path: Path) -> None:
    found = findings(run, DATABASES.borrow(f"{tmp_path}"))
    for name in ("Postgres", "database", "schema", "nodes", "commit", "connections"):
        assert found[name][0] == "ok", found
    # The Postgres of the tests runs without durability, for speed.
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        state, detail = found[name]
        assert state == "warn"
        assert "is off" in detail


def test_the_doctor_reports_that_vacuum_lags(run: Run, tmp_path: Path) -> None:
    url = DATABASES.create()
    run_on(lambda: open_postgres(url), lambda harness: harness.answer())
    name = url.rpartition("/")[2]
    assert "vacuum" not in findings(run, url)
    DATABASES.server.sql("ALTER TABLE outlive.events SET (autovacuum_enabled = off)", name)
    DATABASES.server.sql("INSERT INTO outlive.events SELECT 99, n, 1, 0, '' FROM generate_series(1, 25000) n", name)
    DATABASES.server.sql("DELETE FROM outlive.events WHERE response = 99", name)
    state, detail = findings(run, url)["vacuum"]
    assert state == "warn"
    assert detail.startswith("events: 25000 dead rows")


def test_a_server_logs_the_risks_of_its_database_at_start(tmp_path: Path) -> None:
    with OutliveServer(tmp_path, "http://127.0.0.1:1/v1", database_url=DATABASES.create()) as server:
        for name in ("fsync", "full_page_writes", "synchronous_commit"):
            assert f"{name} is off: " in server.log


def test_the_doctor_reports_an_unreachable_database_without_its_password(run: Run) -> None:
    found = findings(run, "postgresql://nobody:secret@127.0.0.1:1/none")
    assert found["database"][0] == "fail"
    assert "secret" not in found["database"][1]


def test_the_doctor_reports_a_missing_schema(run: Run, empty: str) -> None:
    assert "not created yet" in findings(run, empty)["schema"][1]


def test_a_durable_postgres_with_a_synchronous_standby_has_no_risks() -> None:
    primary = PostgresServer(durable=True).create()
    standby: PostgresServer | None = None
    try:
        assert asyncio.run(risks_of(primary)) == {}
        standby = primary.make_standby()
        assert "asynchronous" in wait_for_risk(primary)["standby"]
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.sql("SELECT pg_reload_conf()")
        while risks := asyncio.run(risks_of(primary)):
            assert set(risks) == {"standby"}
        primary.sql("ALTER SYSTEM SET synchronous_commit = 'local'")
        primary.sql("SELECT pg_reload_conf()")
        while not (risks := asyncio.run(risks_of(primary))):
            pass
        assert "do not wait for the synchronous standby" in risks["synchronous_commit"]
    finally:
        primary.remove()
        if standby is not None:
            standby.remove()


def wait_for_risk(cluster: PostgresServer) -> dict[str, str]:
    while not (risks := asyncio.run(risks_of(cluster))):
        pass
    return risks


async def risks_of(cluster: PostgresServer) -> dict[str, str]:
    import asyncpg

    connection = await asyncpg.connect(cluster.url())
    try:
        return {risk.name: risk.sentence for risk in await find_risks(connection)}
    finally:
        await connection.close()
