"""`outlive backup` and `outlive restore`: copies of a SQLite database and of its key file."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from outlive.cli.serve import parameter, take_settings
from outlive.cli.terminal import console
from outlive.config import database_url
from outlive.config.load import load
from outlive.config.settings import Settings
from outlive.core.errors import SettingsError

_FILE = inspect.Parameter(
    "file", inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Path, typer.Argument(help="The backup.")]
)


@take_settings(
    _FILE,
    parameter("with_key", bool, "--with-key", "Copy the key file too, to FILE.key."),
    parameter("force", bool, "--force", "Replace an existing file."),
)
def backup(**flags: Any) -> None:
    """Copy a SQLite database to FILE while its server runs, and verify that every response replays the same.

    Takes the settings of `outlive serve`, and uses only `database` and the seal key.
    """
    from outlive.storage.sqlite.backup import back_up

    file, with_key, force = flags.pop("file"), flags.pop("with_key"), flags.pop("force")
    settings = load(flags)
    database, key = _find_files(settings)
    if not database.exists():
        raise SettingsError(f"There is no database {database}.")
    _refuse_existing([file, _key_of(file)] if with_key else [file], force)
    responses = back_up(database, file)
    kept = f"Keep the key file {key} with it, or give --with-key"
    if settings.seal_keys:
        kept = "Keep the seal key of the settings with it"
    elif not key.exists():
        kept = f"There is no key file {key} yet"
    elif with_key:
        _copy_key(key, _key_of(file))
        kept = f"The key file is in {_key_of(file)}"
    console().print(f"Backed up {database} to {file}: {responses} responses replay the same.")
    console().print(f"{kept}: it opens the secrets of tools that unfinished runs hold.")


@take_settings(_FILE, parameter("force", bool, "--force", "Replace the database that is there."))
def restore(**flags: Any) -> None:
    """Put a backup in the place of a SQLite database that no server is using, and verify it.

    Takes the settings of `outlive serve`, and uses only `database`. The next start recovers unfinished responses.
    """
    from outlive.storage.sqlite.backup import restore as put_back

    file, force = flags.pop("file"), flags.pop("force")
    database, key = _find_files(load(flags))
    if not file.is_file():
        raise SettingsError(f"There is no backup {file}.")
    _refuse_existing([database, key] if _key_of(file).exists() else [database], force)
    responses = put_back(file, database)
    if _key_of(file).exists():
        _copy_key(_key_of(file), key)
    console().print(f"Restored {database} from {file}: {responses} responses replay as when it was made.")


def _find_files(settings: Settings) -> tuple[Path, Path]:
    """Return the database and its key file."""
    if database_url.is_shared(settings.database):
        raise SettingsError("This copies SQLite files; Postgres has its own programs: docs/how-to/back-up.md.")
    path = database_url.path_of(settings.database)
    return path, _key_of(path)


def _key_of(database: Path) -> Path:
    return database.with_name(f"{database.name}.key")


def _copy_key(source: Path, target: Path) -> None:
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(source.read_bytes())


def _refuse_existing(files: list[Path], force: bool) -> None:
    for file in files:
        if file.exists() and not force:
            raise SettingsError(f"{file} exists; give --force to replace it.")
