"""What the doctor finds out about a Postgres database."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from outlive.cli.doctor.findings import Section
from outlive.config.database_url import show
from outlive.core.errors import SettingsError

_OLDEST = 15  # the oldest that Outlive is tried with
_SLOW_COMMIT_MS = 20.0
_COMMITS = 20
# In a transaction of its own, so that its end waits for the disk as every commit of ours does.
_COMMIT = "SELECT pg_logical_emit_message(true, 'outlive', 'doctor')"
_NODES = "SELECT name FROM workers WHERE expires_at > clock_timestamp() ORDER BY name"
_ROOM = "SELECT current_setting('max_connections')::int, count(*) FROM pg_stat_activity"


def look_at_postgres(url: str) -> Section:
    section = Section("Database")
    try:
        asyncio.run(_look(section, url))
    except SettingsError as error:
        section.add("fail", "database", error.message)
    return section


async def _look(section: Section, url: str) -> None:
    try:
        # Its driver is an extra that a server on SQLite does without.
        from outlive.storage.postgres import connection as postgres
        from outlive.storage.postgres import durability, schema
    except ImportError as error:
        raise SettingsError("Postgres needs one package more: pip install 'outlive[postgres]'.") from error
    connection = await postgres.connect_once(url)
    try:
        _look_at_version(section, connection)
        section.add("ok", "database", show(url))
        await _look_at_schema(section, schema, connection)
        await _time_commits(section, connection)
        await _count_room(section, connection, postgres.NODE_CONNECTIONS)
        for risk in await durability.find_risks(connection):
            section.add("warn", risk.name, risk.sentence)
    except postgres.ERRORS as error:
        section.add("fail", "database", postgres.describe(error))
    finally:
        connection.terminate()


def _look_at_version(section: Section, connection: Any) -> None:
    version = connection.get_settings().server_version.split(" ")[0]
    if connection.get_server_version().major >= _OLDEST:
        section.add("ok", "Postgres", version)
    else:
        section.add("warn", "Postgres", f"{version}; Outlive is tried with {_OLDEST} and newer.")


async def _look_at_schema(section: Section, schema: Any, connection: Any) -> None:
    version, known = await schema.find_version(connection), schema.SCHEMA_VERSION
    if version > known:
        section.add("fail", "schema", f"{version}, from a newer Outlive; this one knows {known}. Use that version.")
        return
    behind = "there is nothing yet" if version == 0 else f"{version} of {known}"
    later = f"{behind}; the next start, or `outlive migrate`, brings it up to date."
    section.add("ok", "schema", f"{version}" if version == known else later)
    if version == known:
        nodes = [row[0] for row in await connection.fetch(_NODES)]
        section.add("ok", "nodes", ", ".join(nodes) or "none is running")


async def _time_commits(section: Section, connection: Any) -> None:
    """How long a commit takes, the network included; every event waits for that."""
    times = []
    for _ in range(_COMMITS):
        began = time.perf_counter()
        await connection.execute(_COMMIT)
        times.append((time.perf_counter() - began) * 1000)
    median = statistics.median(times)
    section.add("ok" if median < _SLOW_COMMIT_MS else "warn", "commit", f"{median:.2f} ms (median of {len(times)})")


async def _count_room(section: Section, connection: Any, needed: int) -> None:
    most, used = await connection.fetchrow(_ROOM)
    state = "ok" if most - used >= needed else "warn"
    section.add(state, "connections", f"{used} of {most} in use; a node takes up to {needed}.")  # type: ignore[arg-type]
