"""The schema on Postgres: made once, however many nodes start, and never used by a program that is too old for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest

from outlive.core.errors import SettingsError
from outlive.storage.postgres import connection as postgres
from outlive.storage.postgres import schema
from outlive.storage.queries import SCHEMA_VERSION
from tests.conformance.scenes import WRITTEN, Book, entry
from tests.conformance.storages import open_postgres
from tests.support.postgres import DATABASES


@pytest.fixture
def empty() -> Iterator[str]:
    """The URL of a database with nothing in it."""
    DATABASES.server.sql("CREATE DATABASE bare")
    yield DATABASES.server.url("bare")
    DATABASES.server.sql("DROP DATABASE bare WITH (FORCE)")


async def query(url: str, statement: str) -> list[Any]:
    connection = await postgres.connect(url)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()


def test_nodes_that_start_at_once_make_the_schema_once(empty: str) -> None:
    async def go() -> None:
        changes = await asyncio.gather(*(postgres.migrate_database(empty) for _ in range(6)))
        assert sorted(changes)[0] == (0, SCHEMA_VERSION)
        assert [change for change in changes if change[0] == 0] == [(0, SCHEMA_VERSION)]
        rows = await query(empty, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'outlive%' ORDER BY 1")
        assert [row[0] for row in rows] == ["outlive", schema.FUNCTIONS_SCHEMA]
        assert await postgres.migrate_database(empty) == (SCHEMA_VERSION, SCHEMA_VERSION)

    asyncio.run(go())


def test_an_older_program_refuses_a_newer_schema(empty: str) -> None:
    async def go() -> None:
        await postgres.migrate_database(empty)
        await query(empty, "UPDATE schema SET version = version + 1 RETURNING version")
        with pytest.raises(SettingsError, match="newer Outlive"):
            await postgres.PostgresDatabase.open(empty)

    asyncio.run(go())


def test_a_node_that_runs_goes_on_while_the_schema_is_brought_up_to_date(empty: str) -> None:
    """What a later version adds: columns, tables, and functions of its own."""

    async def go() -> None:
        async with open_postgres(empty) as home:
            book = Book(home)
            response_id, lease = await book.start()
            await query(empty, "ALTER TABLE responses ADD COLUMN later text")
            await query(empty, "ALTER TABLE leases ADD COLUMN later text NOT NULL DEFAULT ''")
            await query(empty, "CREATE SCHEMA outlive_functions_later")
            await query(empty, "UPDATE schema SET version = version + 1 RETURNING version")
            assert await home.ledger.append([entry(lease, 2)]) == [WRITTEN]
            await book.close(lease, first=3)
            await book.answer("another")
            await book.admit(worker=None)
            assert len(await book.claim()) == 1
            assert (await home.catalog.response("ann", response_id)).status == "completed"

    asyncio.run(go())


def test_a_migration_waits_for_a_node_that_is_at_it(empty: str) -> None:
    async def go() -> None:
        await postgres.migrate_database(empty)
        await query(empty, "UPDATE schema SET version = version - 1 RETURNING version")
        other = await postgres.connect(empty)
        holding = other.transaction()
        await holding.start()
        await other.execute("SELECT pg_advisory_xact_lock($1)", schema.MIGRATING)
        migrating = asyncio.create_task(postgres.migrate_database(empty))
        done, _ = await asyncio.wait([migrating], timeout=0.3)
        assert not done
        await other.execute("UPDATE schema SET version = version + 1")
        await holding.commit()
        assert await migrating == (SCHEMA_VERSION, SCHEMA_VERSION)
        await other.close()

    asyncio.run(go())


def test_an_encoding_that_cannot_hold_everything_is_refused() -> None:
    cluster = DATABASES.server
    cluster.sql("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(SettingsError, match="LATIN1"):
        asyncio.run(postgres.migrate_database(cluster.url("latin")))


def test_what_cannot_be_reached_is_said_in_a_sentence() -> None:
    with pytest.raises(SettingsError, match="cannot be reached"):
        asyncio.run(postgres.migrate_database("postgresql://nobody@127.0.0.1:1/none"))


def test_both_databases_have_the_same_migrations() -> None:
    assert _names("outlive.storage.postgres") == _names("outlive.storage.sqlite")
    assert len(_names("outlive.storage.sqlite")) == SCHEMA_VERSION


def _names(package: str) -> list[str]:
    return sorted(file.name for file in resources.files(package).joinpath("migrations").iterdir())
