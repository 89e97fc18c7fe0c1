"""`outlive migrate` and `outlive copy`: bring a database up to date, and move everything to another."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from outlive.cli.serve import take_settings
from outlive.cli.terminal import console
from outlive.config import database_url
from outlive.config.load import load
from outlive.core.errors import SettingsError


def migrate(**flags: Any) -> None:
    """Bring the database's schema up to date. Servers do so themselves when they start; this does only that.

    Takes the settings of `outlive serve`, and looks at `database` alone.
    """
    url = load(flags).database
    before, after = asyncio.run(_migrate(url))
    where = database_url.show(url)
    if before == after:
        console().print(f"{where} is up to date (schema {after}).")
    else:
        console().print(f"{where} was brought from schema {before} to {after}.")


async def _migrate(url: str) -> tuple[int, int]:
    if database_url.is_shared(url):
        need_postgres()
        from outlive.storage.postgres import connection as postgres

        return await postgres.migrate_database(url)
    from outlive.storage.sqlite import connection as sqlite

    database = sqlite.Database(str(database_url.path_of(url)))
    await database.close()
    return database.version_before, sqlite.SCHEMA_VERSION


def need_postgres() -> None:
    try:
        import asyncpg  # noqa: F401
    except ImportError as error:
        raise SettingsError("Postgres needs one package more: pip install 'outlive[postgres]'.") from error


take_settings()(migrate)


def copy(
    source: Annotated[str, typer.Option("--from", help="What to copy: sqlite:///FILE or postgresql://...")],
    target: Annotated[str, typer.Option("--to", help="Where to: an empty database, or one that is not there yet.")],
) -> None:
    """Copy everything from one database to another, and compare every response afterwards.

    No server may run on either. Answers that were not finished are finished by the first server on the new one.
    """
    if database_url.is_shared(source) or database_url.is_shared(target):
        need_postgres()
    # Most commands do without it.
    from outlive.storage import copy

    out = console()
    copied = asyncio.run(copy.copy(source, target, lambda line: out.print(f"  {line}")))
    out.print(
        f"Copied to {database_url.show(target)}: {copied.responses} responses and {copied.conversations} conversations "
        "replay as before."
    )
