"""The schema on Postgres: created once by any number of nodes, and never used by an older program."""

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
from tests.conformance.harness import WRITTEN, StorageHarness, entry
from tests.conformance.storages import open_postgres
from tests.support.postgres import DATABASES


@pytest.fixture
def empty() -> Iterator[str]:
    """Yield the URL of an empty database."""
    DATABASES.server.sql("CREATE DATABASE bare")
    yield DATABASES.server.url("bare")
    DATABASES.server.sql("DROP DATABASE bare WITH (FORCE)")


async def query(url: str, statement: str) -> list[Any]:
    connection = await postgres.connect(url)
    try:
        return list(await connection.fetch(statement))
    finally:
        await connection.close()


def test_nodes_that_start_together_create_the_schema_once(empty: str) -> None:
    async def go() -> None:
        changes = await asyncio.gather(*(postgres.migrate_database(empty) for _ in range(6)))
        assert sorted(changes)[0] == (0, SCHEMA_VERSION)
        assert [change for change in changes if change[0] == 0] == [(0, SCHEMA_VERSION)]
        rows = await query(empty, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'outlive%' ORDER BY 1")
        assert [row[0] for row in rows] == ["outlive", schema.FUNCTIONS_SCHEMA]
        assert await postgres.migrate_database(empty) == (SCHEMA_VERSION, SCHEMA_VERSION)

    asyncio.run(go())


def test_large_tables_are_vacuumed_when_a_twentieth_of_their_rows_is_dead(empty: str) -> None:
    async def go() -> None:
        await postgres.migrate_database(empty)
        options = "SELECT relname FROM pg_class WHERE 'autovacuum_vacuum_scale_factor=0.05' = ANY (reloptions)"
        tables = {row[0] for row in await query(empty, options)}
        assert {"responses", "items", "threads", "events", "packs", "snapshots"} <= tables

    asyncio.run(go())


def test_an_older_program_refuses_a_newer_schema(empty: str) -> None:
    async def go() -> None:
        await postgres.migrate_database(empty)
        await query(empty, "UPDATE schema SET version = version + 1 RETURNING version")
        with pytest.raises(SettingsError, match="newer Outlive"):
            await postgres.PostgresDatabase.open(empty)

    asyncio.run(go())


def test_a_running_node_keeps_working_during_a_migration(empty: str) -> None:
    """A later version adds columns, tables, and functions of its own."""

    async def go() -> None:
        async with open_postgres(empty) as storage:
            harness = StorageHarness(storage)
            response_id, lease = await harness.start()
            await query(empty, "ALTER TABLE responses ADD COLUMN later text")
            await query(empty, "ALTER TABLE leases ADD COLUMN later text NOT NULL DEFAULT ''")
            await query(empty, "CREATE SCHEMA outlive_functions_later")
            await query(empty, "UPDATE schema SET version = version + 1 RETURNING version")
            assert await storage.ledger.append([entry(lease, 2)]) == [WRITTEN]
            await harness.close(lease, first=3)
            await harness.answer("another")
            await harness.admit(worker=None)
            assert len(await harness.claim()) == 1
            assert (await storage.catalog.response("ann", response_id)).status == "completed"

    asyncio.run(go())


def test_a_migration_waits_for_the_migration_of_another_node(empty: str) -> None:
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


def test_an_unreachable_database_raises_settings_error() -> None:
    with pytest.raises(SettingsError, match="cannot be reached"):
        asyncio.run(postgres.migrate_database("postgresql://nobody@127.0.0.1:1/none"))


def test_both_databases_have_the_same_migrations() -> None:
    assert _names("outlive.storage.postgres") == _names("outlive.storage.sqlite")
    assert len(_names("outlive.storage.sqlite")) == SCHEMA_VERSION


def _names(package: str) -> list[str]:
    return sorted(file.name for file in resources.files(package).joinpath("migrations").iterdir())
