"""`outlive doctor`: check settings, database, server and upstreams, and report the settings to change."""

import asyncio
import importlib.util
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from outlive.cli.client import ApiClient, RequestRefused, ServerUnreachable
from outlive.cli.options import JsonFlag, take_settings
from outlive.cli.serve import base_url
from outlive.cli.terminal import Section, print_json, print_section
from outlive.config import database_url
from outlive.config.load import load
from outlive.config.settings import Settings
from outlive.core.errors import SettingsError
from outlive.core.routing import route

_LOW_DISK = 1_000_000_000  # bytes; below this a busy server may fill the disk in a day
_OLDEST_SQLITE = (3, 35, 0)  # the first with RETURNING, which the ledger uses
_OLDEST_POSTGRES = 15  # the oldest that Outlive is tested with
_SLOW_COMMIT_MS = 20.0
_COMMITS = 20
# In a transaction of its own, so that its end waits for the disk as every commit of the server does.
_COMMIT = "SELECT pg_logical_emit_message(true, 'outlive', 'doctor')"
_NODES = "SELECT name FROM workers WHERE expires_at > clock_timestamp() ORDER BY name"
# Tables with more dead rows than this, and than half of the others: autovacuum begins at a twentieth.
_LAGGING = """SELECT relname, n_dead_tup, n_live_tup FROM pg_stat_user_tables
 WHERE schemaname = 'outlive' AND n_dead_tup > 20000 AND n_dead_tup > n_live_tup / 2 ORDER BY n_dead_tup DESC"""
_CONNECTIONS = "SELECT current_setting('max_connections')::int, count(*) FROM pg_stat_activity"


_MODEL = typer.Option(metavar="NAME", help="The model to ask, instead of the first one that is listed.")
_TIMEOUT_HELP = "Seconds to wait for an upstream's next byte. Default: 60."


@take_settings
def doctor(
    *,
    model: Annotated[str | None, _MODEL] = None,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="Ask the upstreams nothing.")] = False,
    timeout: Annotated[float, typer.Option(metavar="NUMBER", show_default=False, help=_TIMEOUT_HELP)] = 60.0,
    as_json: JsonFlag = False,
    **flags: Any,
) -> None:
    """Check the settings, the database, the running server and every upstream, and report what to set.

    Takes the settings of `outlive serve`. Each upstream is asked a few questions of 16 tokens at most.
    """
    sections: list[Section] = []
    for section in _examine(flags, model, not no_probe, timeout):
        sections.append(section)
        if not as_json:
            print_section(section)
    failed = any(section.failed for section in sections)
    if as_json:
        print_json({"ok": not failed, "sections": sections})
    if failed:
        raise typer.Exit(1)


def _examine(flags: dict[str, Any], model: str | None, probes: bool, timeout: float) -> Iterator[Section]:
    section = Section("Settings")
    try:
        settings = load(flags)
    except SettingsError as error:
        section.add("fail", "settings", error.message)
        yield section
        return
    section.add("ok", "settings", f"{len(settings.upstreams)} upstreams, {len(settings.keys)} owners with keys")
    yield section
    is_postgres = database_url.is_shared(settings.database)
    checks = {"Database": _check_postgres if is_postgres else _check_sqlite}
    checks |= {"Libraries": _check_libraries, "Server": _check_server}
    if not settings.upstreams:
        checks["Embedded model"] = _check_embedded
    for title, check in checks.items():
        section = Section(title)
        try:
            asyncio.run(check(section, settings))
        except SettingsError as error:
            section.add("fail", title.split()[-1].lower(), error.message)
        yield section
    if settings.upstreams and probes:
        # The dialects; every other command starts faster without this import.
        from outlive.cli.doctor.probe import probe

        aliases = {upstream.name: upstream.models for upstream in settings.upstreams}
        chosen = dict([route(model, aliases)]) if model else {}
        for upstream in settings.upstreams:
            yield probe(upstream, chosen.get(upstream.name), timeout)


async def _check_libraries(section: Section, settings: Settings) -> None:
    """Check the libraries of which more is used than their public parts."""
    # Every other command starts faster without these imports.
    from outlive.http.compatibility import LOST, find_fault

    fault = await find_fault()
    found = {"uvicorn": f"{fault}; {LOST}" if fault else ""}
    if importlib.util.find_spec("agents") is not None:
        found["openai-agents"] = importlib.import_module("outlive.agents.background").LACKING
    for name, lost in found.items():
        detail = f" is not known here: {lost}." if lost else ""
        section.add("warn" if lost else "ok", name, metadata.version(name) + detail)


async def _check_server(section: Section, settings: Settings) -> None:
    if not settings.port:
        section.add("skip", "server", "The port is 0, so its address is unknown.")
        return
    server = ApiClient(base_url(settings), seconds=5.0)
    for path, name in (("/healthz", "alive"), ("/readyz", "ready")):
        try:
            server.call("GET", path)
            section.add("ok", name, server.url)
        except RequestRefused as error:
            section.add("fail", name, f"{server.url}{path}: {error.message}")
        except ServerUnreachable:
            section.add("skip", "server", f"None is running at {server.url}.")
            return


async def _check_embedded(section: Section, settings: Settings) -> None:
    # Every other command starts faster without this import.
    from outlive.dialects.embedded.backend import TITLE, find_weights

    size = find_weights().stat().st_size / 1e6
    section.add("ok", "model", f"{TITLE}, {size:.0f} MB. A demo model; for yours give --upstream URL.")


# -- the database: its version, the disk or server it is on, and the time of a commit


async def _check_sqlite(section: Section, settings: Settings) -> None:
    path = database_url.path_of(settings.database).absolute()
    section.add("ok" if sqlite3.sqlite_version_info >= _OLDEST_SQLITE else "fail", "SQLite", sqlite3.sqlite_version)
    if path.exists() and not _is_sqlite(path):
        section.add("fail", "file", f"{path} is not a SQLite database; choose another file.")
        return
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK) or not os.access(path.parent, os.W_OK):
        section.add("fail", "file", f"{target} cannot be written.")
        return
    size = f"{path.stat().st_size / 1e6:.1f} MB" if path.exists() else "does not exist yet"
    section.add("ok", "file", f"{path} ({size})")
    free = shutil.disk_usage(path.parent).free
    section.add("ok" if free >= _LOW_DISK else "warn", "free disk", f"{free / 1e9:.1f} GB")
    try:
        with tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:

            async def commit() -> None:
                file.write(b"\0" * 4096)
                os.fsync(file.fileno())

            await _time_commits(section, "fsync", commit)
    except OSError as error:
        section.add("fail", "fsync", f"A file in {path.parent} cannot be written: {error.strerror}.")


def _is_sqlite(path: Path) -> bool:
    """Return True if the file is a database or empty. An unreadable file is left to the next check."""
    try:
        with path.open("rb") as file:
            return file.read(16) in (b"", b"SQLite format 3\0")
    except PermissionError:
        return True


async def _time_commits(section: Section, name: str, commit: Callable[[], Awaitable[object]]) -> None:
    """Time how long it takes to make a commit durable, with the network if there is one; every event waits for that."""
    times = []
    for _ in range(_COMMITS):
        began = time.perf_counter()
        await commit()
        times.append(time.perf_counter() - began)
    median = statistics.median(times) * 1000
    section.add("ok" if median < _SLOW_COMMIT_MS else "warn", name, f"{median:.2f} ms (median of {_COMMITS})")


async def _check_postgres(section: Section, settings: Settings) -> None:
    # Every other command starts faster without these imports.
    from outlive.storage.storage import import_postgres

    postgres = import_postgres()
    from outlive.storage.postgres import durability, schema

    connection = await postgres.connect_once(settings.database)
    try:
        version = connection.get_settings().server_version.split(" ")[0]
        is_old = connection.get_server_version().major < _OLDEST_POSTGRES
        note = f"; Outlive is tested with {_OLDEST_POSTGRES} and newer." if is_old else ""
        section.add("warn" if is_old else "ok", "Postgres", version + note)
        section.add("ok", "database", database_url.show(settings.database))
        await _check_schema(section, schema, connection)
        await _time_commits(section, "commit", partial(connection.execute, _COMMIT))
        most, used = await connection.fetchrow(_CONNECTIONS)
        detail = f"{used} of {most} in use; a node takes up to {postgres.NODE_CONNECTIONS}."
        section.add("ok" if most - used >= postgres.NODE_CONNECTIONS else "warn", "connections", detail)
        for table, dead, live in await connection.fetch(_LAGGING):
            detail = f"{table}: {dead} dead rows beside {live}; see that autovacuum is on and keeps up, or VACUUM it."
            section.add("warn", "vacuum", detail)
        for risk in await durability.find_risks(connection):
            section.add("warn", risk.name, risk.sentence)
    except postgres.ERRORS as error:
        section.add("fail", "database", postgres.describe(error))
    finally:
        connection.terminate()


async def _check_schema(section: Section, schema: Any, connection: Any) -> None:
    version, known = await schema.find_version(connection), schema.SCHEMA_VERSION
    if version > known:
        section.add("fail", "schema", f"{version}, from a newer Outlive; this one knows {known}. Use that version.")
        return
    if version < known:
        behind = "not created yet" if version == 0 else f"{version} of {known}"
        section.add("ok", "schema", f"{behind}; the next start, or `outlive migrate`, migrates it.")
        return
    section.add("ok", "schema", str(version))
    nodes = [row[0] for row in await connection.fetch(_NODES)]
    section.add("ok", "nodes", ", ".join(nodes) or "none is running")
