"""The schema: brought up to date by whichever node comes first, and never taken back."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from typing import Any

from outlive.core.errors import SettingsError

SCHEMA_VERSION = 4
# The tables, in a Postgres schema of their own: `threads` and `events` are names that others use too.
SCHEMA = "outlive"
# Whoever changes the schema holds this advisory lock ("outlive" as bytes).
MIGRATING = int.from_bytes(b"outlive", "big")

_HAS_VERSION = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'schema')"
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)"

_PACKAGE = "outlive.storage.postgres"


def load_queries(file: str = "queries.sql") -> dict[str, str]:
    """The statements of a .sql file by name: each stands under a line `-- name --`."""
    parts = re.split(r"^-- (\w+) --$", _read(file), flags=re.M)[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def _read(file: str) -> str:
    return resources.files(_PACKAGE).joinpath(file).read_text()


FUNCTIONS = _read("functions.sql")
# Nodes of two versions, side by side while a cluster is upgraded, have each their own functions on the same tables.
FUNCTIONS_SCHEMA = f"{SCHEMA}_functions_{hashlib.sha256(FUNCTIONS.encode()).hexdigest()[:12]}"
SEARCH_PATH = f"{SCHEMA}, {FUNCTIONS_SCHEMA}"


async def migrate(connection: Any) -> tuple[int, int]:
    """Bring the schema up to date; its version before and after. Nodes that start at once do it one after the other."""
    version = await find_version(connection)
    if version == SCHEMA_VERSION and await _has_functions(connection):
        return version, version
    async with connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATING)
        version = await find_version(connection)  # somebody else may have done it meanwhile
        if version > SCHEMA_VERSION:
            raise SettingsError(
                f"The database was written by a newer Outlive (schema {version}, this one knows {SCHEMA_VERSION}); "
                "use that version."
            )
        for number, text in _migrations():
            if number > version:
                await _apply(connection, number, text)
        if not await _has_functions(connection):
            await connection.execute(f"CREATE SCHEMA {FUNCTIONS_SCHEMA}")
            await connection.execute(f"SET LOCAL search_path = {FUNCTIONS_SCHEMA}, {SCHEMA}")
            await connection.execute(FUNCTIONS)
    return version, SCHEMA_VERSION


async def find_version(connection: Any) -> int:
    """0: there is nothing of ours yet."""
    # Asked of the catalog itself: names are looked up in a cache, which may not know yet what another has just made.
    if not await connection.fetchval(_HAS_VERSION, SCHEMA):
        return 0
    return int(await connection.fetchval(f"SELECT version FROM {SCHEMA}.schema"))


async def _has_functions(connection: Any) -> bool:
    return bool(await connection.fetchval(_HAS_SCHEMA, FUNCTIONS_SCHEMA))


def _migrations() -> list[tuple[int, str]]:
    files = resources.files(_PACKAGE).joinpath("migrations").iterdir()
    return sorted((int(file.name[:4]), file.read_text()) for file in files if file.name.endswith(".sql"))


async def _apply(connection: Any, number: int, text: str) -> None:
    if number == 1:
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        await connection.execute(f"CREATE TABLE {SCHEMA}.schema (version int NOT NULL)")
        await connection.execute(f"INSERT INTO {SCHEMA}.schema VALUES (0)")
    await connection.execute(f"SET LOCAL search_path = {SCHEMA}")
    await connection.execute(text)
    await connection.execute(f"UPDATE {SCHEMA}.schema SET version = {number}")
