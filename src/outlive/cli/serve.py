"""Commands on the machine of the server: `serve`, and `migrate`, `copy`, `backup` and `restore` for its database."""

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from outlive import __version__
from outlive.cli.options import take_settings
from outlive.cli.terminal import console
from outlive.config import database_url
from outlive.config.load import load
from outlive.config.presets import PRESETS
from outlive.config.settings import Settings
from outlive.core.errors import require


@take_settings
def serve(**flags: Any) -> None:
    """Serve Responses and Conversations; without --upstream, with the embedded demo model."""
    settings = load(flags)
    # This imports the whole server; the other commands start faster without it.
    from outlive.app import serve as run

    run(settings, partial(announce, settings))


def announce(settings: Settings) -> None:
    """Print the address, models, storage and an example request; never a key."""
    out = console()
    out.print(Text(f"Outlive {__version__}", style="bold"))
    lines = _summarise(settings)
    if settings.port and settings.role != "worker":  # with port 0 only the log names the real one
        names = [alias for upstream in settings.upstreams for alias in upstream.models]
        names += [agent.partition("=")[0] for agent in settings.agents if "=" in agent]
        model = next(iter(names), "MODEL" if settings.upstreams or settings.agents else "demo")
        key = ' -H "Authorization: Bearer $KEY"' if settings.keys else ""
        curl = f"curl -N {base_url(settings)}/v1/responses{key} -H 'Content-Type: application/json'"
        lines.append(("try", f'{curl} -d \'{{"model": "{model}", "input": "Tell me a story.", "stream": true}}\''))
    last = ""
    for name, value in lines:
        out.print(Text(f"  {name if name != last else '':<9}", style="dim") + Text(value))
        last = name


def _summarise(settings: Settings) -> list[tuple[str, str]]:
    """Return the lines, each with its heading; what several in a row have in common is shown once."""
    who = f"with the keys of {', '.join(settings.keys)}" if settings.keys else "without keys, for this machine only"
    if not settings.keys and (settings.require_keys or settings.oidc):
        who = "with keys of the database" + (f", or tokens of {settings.oidc.issuer}" if settings.oidc else "")
    url = base_url(settings) if settings.role == "worker" else f"{base_url(settings)}/v1"
    where = url if settings.port else f"{settings.host}, on a free port"
    lines = [("serving", f"{where}, {who}")]
    if settings.role == "worker":
        lines = [("worker", f"runs responses; health checks only at {where}")]
    elif settings.role == "api":
        lines.append(("serving", "Stored responses wait for a node with the role worker or all."))
    several = len(settings.upstreams) > 1
    for place, upstream in enumerate(settings.upstreams):
        names = [f"{upstream.name}/MODEL"] if several else []
        names += [] if several and place else ["every other model name" if several else "every model name"]
        lines.append(("upstream", f"{upstream.name}: {upstream.url} ({', '.join([*names, *upstream.models])})"))
    lines += [("agent", agent) for agent in settings.agents]
    if not settings.upstreams and not settings.agents:
        # The other commands start faster without this import.
        from outlive.dialects.embedded.backend import TITLE

        known = ", ".join(name for name, preset in PRESETS.items() if preset.url)
        lines.append(("model", f"{TITLE}, embedded. This is a demo model: it shows durability, not intelligence."))
        lines.append(("model", f"Yours: outlive serve --upstream URL, or one of {known}"))
    if settings.tools:
        to_all = "offered to every request" if settings.offer_tools else 'to requests with the label "outlive"'
        lines.append(("tools", f"{', '.join(settings.tools)}, {to_all}"))
    kept = f"responses {_days(settings.response_days)}, conversations {_days(settings.conversation_days)}"
    return [*lines, ("storing", f"{database_url.show(settings.database)} ({kept})")]


def base_url(settings: Settings) -> str:
    """Return the URL under which this machine reaches the server."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - shown, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def _days(days: float | None) -> str:
    return "for ever" if days is None else f"for {days:g} day{'' if days == 1 else 's'}"


# -- the database


@take_settings
def migrate(**flags: Any) -> None:
    """Bring the database's schema up to date, as a server does when it starts.

    Takes the settings of `outlive serve`, and uses only `database`.
    """
    url = load(flags).database
    before, after = asyncio.run(_migrate(url))
    done = f"was migrated from schema {before} to {after}" if before != after else f"is up to date (schema {after})"
    console().print(f"{database_url.show(url)} {done}.")


async def _migrate(url: str) -> tuple[int, int]:
    # The other commands start faster without these imports.
    from outlive.storage.queries import SCHEMA_VERSION
    from outlive.storage.sqlite.connection import SqliteDatabase
    from outlive.storage.storage import import_postgres

    if database_url.is_shared(url):
        before, after = await import_postgres().migrate_database(url)
        return before, after
    database = SqliteDatabase(str(database_url.path_of(url)))
    await database.close()
    return database.version_before, SCHEMA_VERSION


def copy(
    source: Annotated[str, typer.Option("--from", help="The database to copy: sqlite:///FILE or postgresql://...")],
    target: Annotated[str, typer.Option("--to", help="The target: an empty database, or one that does not exist yet.")],
) -> None:
    """Copy everything from one database to another, and compare every response afterwards.

    No server may run on either. Unfinished responses are continued by the first server on the new one.
    """
    # The other commands start faster without these imports.
    from outlive.storage import copy
    from outlive.storage.storage import import_postgres

    if database_url.is_shared(source) or database_url.is_shared(target):
        import_postgres()
    out = console()
    responses, conversations = asyncio.run(copy.copy(source, target, lambda line: out.print(f"  {line}")))
    replayed = f"{responses} responses and {conversations} conversations replay as before"
    out.print(f"Copied to {database_url.show(target)}: {replayed}.")


BackupFile = Annotated[Path, typer.Argument(help="The backup.")]
ForceFlag = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
KeyFlag = Annotated[bool, typer.Option("--with-key", help="Copy the key file too, to FILE.key.")]


@take_settings
def backup(*, file: BackupFile, force: ForceFlag = False, with_key: KeyFlag = False, **flags: Any) -> None:
    """Copy a SQLite database to FILE while its server runs, and verify that every response replays the same.

    Takes the settings of `outlive serve`, and uses only `database` and the seal key.
    """
    from outlive.storage.sqlite.backup import back_up

    settings = load(flags)
    database, key, key_copy = _find_files(settings, file)
    require(database.exists(), f"There is no database {database}.")
    _refuse_existing([file, key_copy] if with_key else [file], force)
    responses = back_up(database, file)
    kept = f"Keep the key file {key} with it, or give --with-key"
    if settings.seal_keys:
        kept = "Keep the seal key of the settings with it"
    elif not key.exists():
        kept = f"There is no key file {key} yet"
    elif with_key:
        _copy_key(key, key_copy)
        kept = f"The key file is in {key_copy}"
    console().print(f"Backed up {database} to {file}: {responses} responses replay the same.")
    console().print(f"{kept}: it opens the secrets of tools that unfinished runs hold.")


@take_settings
def restore(*, file: BackupFile, force: ForceFlag = False, **flags: Any) -> None:
    """Put a backup in the place of a SQLite database that no server is using, and verify it.

    Takes the settings of `outlive serve`, and uses only `database`. The next start recovers unfinished responses.
    """
    from outlive.storage.sqlite import backup as backups

    database, key, key_copy = _find_files(load(flags), file)
    require(file.is_file(), f"There is no backup {file}.")
    _refuse_existing([database, key] if key_copy.exists() else [database], force)
    responses = backups.restore(file, database)
    if key_copy.exists():
        _copy_key(key_copy, key)
    console().print(f"Restored {database} from {file}: {responses} responses replay as when it was made.")


@take_settings
def shrink(**flags: Any) -> None:
    """Give the free space in a SQLite file back, while no server is using it.

    Takes the settings of `outlive serve`, and uses only `database`. From then on the server shrinks the file by itself.
    """
    from outlive.storage.sqlite import connection as sqlite

    database = _find_file(load(flags))
    require(database.exists(), f"There is no database {database}.")
    before, after = sqlite.shrink(str(database))
    console().print(f"{database} was {before / 1e6:.1f} MB, and is {after / 1e6:.1f} MB now.")


def _find_files(settings: Settings, backup: Path) -> tuple[Path, Path, Path]:
    """Return the database, its key file, and the key file beside a backup."""
    path = _find_file(settings)
    return path, path.with_name(f"{path.name}.key"), backup.with_name(f"{backup.name}.key")


def _find_file(settings: Settings) -> Path:
    wrong = "This is for SQLite files; Postgres has its own programs: docs/how-to/back-up.md."
    require(not database_url.is_shared(settings.database), wrong)
    return database_url.path_of(settings.database)


def _copy_key(source: Path, target: Path) -> None:
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(source.read_bytes())


def _refuse_existing(files: list[Path], force: bool) -> None:
    for file in files:
        require(force or not file.exists(), f"{file} exists; give --force to replace it.")
