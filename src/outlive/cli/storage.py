"""`outlive migrate` and `outlive copy`: update a database's schema, and copy everything to another database."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from outlive.cli.serve import take_settings
from outlive.cli.terminal import console
from outlive.config import database_url
from outlive.config.load import load
from outlive.core.errors import SettingsError


@take_settings()
def migrate(**flags: Any) -> None:
    """Bring the database's schema up to date, as a server does when it starts.

    Takes the settings of `outlive serve`, and uses only `database`.
    """
    url = load(flags).database
    before, after = asyncio.run(_migrate(url))
    where = database_url.show(url)
    if before == after:
        console().print(f"{where} is up to date (schema {after}).")
    else:
        console().print(f"{where} was migrated from schema {before} to {after}.")


async def _migrate(url: str) -> tuple[int, int]:
    if database_url.is_shared(url):
        need_postgres()
        from outlive.storage.postgres import connection as postgres

        return await postgres.migrate_database(url)
    from outlive.storage.queries import SCHEMA_VERSION
    from outlive.storage.sqlite.connection import SqliteDatabase

    database = SqliteDatabase(str(database_url.path_of(url)))
    await database.close()
    return database.version_before, SCHEMA_VERSION


def need_postgres() -> None:
    try:
        import asyncpg  # noqa: F401
    except ImportError as error:
        raise SettingsError("Postgres needs one package more: pip install 'outlive[postgres]'.") from error


def copy(
    source: Annotated[str, typer.Option("--from", help="The database to copy: sqlite:///FILE or postgresql://...")],
    target: Annotated[str, typer.Option("--to", help="The target: an empty database, or one that does not exist yet.")],
) -> None:
    """Copy everything from one database to another, and compare every response afterwards.

    No server may run on either. Unfinished responses are continued by the first server on the new one.
    """
    if database_url.is_shared(source) or database_url.is_shared(target):
        need_postgres()
    # The other commands start faster without this import.
    from outlive.storage import copy

    out = console()
    copied = asyncio.run(copy.copy(source, target, lambda line: out.print(f"  {line}")))
    out.print(
        f"Copied to {database_url.show(target)}: {copied.responses} responses and {copied.conversations} conversations "
        "replay as before."
    )
