"""The schema on Postgres: brought up to date by the first node to start, and never taken back."""

import hashlib
from importlib import resources
from typing import Any

from outlive.storage.queries import SCHEMA_VERSION, find_migrations, load_queries

PACKAGE = "outlive.storage.postgres"
SQL = load_queries(PACKAGE)
# The Postgres schema of the tables: other programs have tables named `threads` and `events` too.
SCHEMA = "outlive"
# The advisory lock that is held during a migration ("outlive" as bytes).
MIGRATING = int.from_bytes(b"outlive", "big")

_HAS_VERSION = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'schema')"
_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)"

FUNCTIONS = resources.files(PACKAGE).joinpath("functions.sql").read_text()
# Nodes of two versions, side by side during a rolling upgrade, each have their own functions on the same tables.
FUNCTIONS_SCHEMA = f"{SCHEMA}_functions_{hashlib.sha256(FUNCTIONS.encode()).hexdigest()[:12]}"
SEARCH_PATH = f"{SCHEMA}, {FUNCTIONS_SCHEMA}"


async def migrate(connection: Any) -> tuple[int, int]:
    """Bring the schema up to date. Returns its version before and after. Nodes that start together take turns."""
    version = await find_version(connection)
    if version == SCHEMA_VERSION and await _has_functions(connection):
        return version, version
    async with connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = 0")
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATING)
        version = await find_version(connection)  # another node may have done it meanwhile
        for number, text in find_migrations(PACKAGE, version, "database"):
            if number == 1:
                await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
                await connection.execute(f"CREATE TABLE {SCHEMA}.schema (version int NOT NULL)")
                await connection.execute(f"INSERT INTO {SCHEMA}.schema VALUES (0)")
            await connection.execute(f"SET LOCAL search_path = {SCHEMA}")
            await connection.execute(text)
            await connection.execute(f"UPDATE {SCHEMA}.schema SET version = {number}")
        if not await _has_functions(connection):
            await connection.execute(f"CREATE SCHEMA {FUNCTIONS_SCHEMA}")
            await connection.execute(f"SET LOCAL search_path = {FUNCTIONS_SCHEMA}, {SCHEMA}")
            await connection.execute(FUNCTIONS)
    return version, SCHEMA_VERSION


async def find_version(connection: Any) -> int:
    """Return the version of the schema; 0 when it has not been created."""
    # From the catalog itself: names are looked up in a cache, which may lack a table that another session just made.
    if not await connection.fetchval(_HAS_VERSION, SCHEMA):
        return 0
    return int(await connection.fetchval(f"SELECT version FROM {SCHEMA}.schema"))


async def _has_functions(connection: Any) -> bool:
    return bool(await connection.fetchval(_HAS_SCHEMA, FUNCTIONS_SCHEMA))
