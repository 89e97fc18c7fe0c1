"""`outlive doctor`: look at settings, database, server and upstreams, and say what to change."""

from __future__ import annotations

import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from outlive.cli.client import Refused, Server, Unreachable
from outlive.cli.doctor.findings import Section, print_section
from outlive.cli.doctor.postgres import look_at_postgres
from outlive.cli.doctor.probe import probe
from outlive.cli.serve import base_url, parameter, take_settings
from outlive.cli.terminal import print_json
from outlive.config.database_url import is_shared
from outlive.config.load import load
from outlive.config.settings import Settings
from outlive.core.errors import SettingsError
from outlive.core.routing import route

_LOW_DISK = 1_000_000_000  # bytes; below this a busy server may fill the disk in a day
_SLOW_FSYNC_MS = 20.0
# RETURNING, which the ledger uses, came with this version.
_OLDEST_SQLITE = (3, 35, 0)


def doctor(**flags: Any) -> None:
    """Check the settings, the database, the running server and every upstream, and say what to set.

    Takes the settings of `outlive serve`. Each upstream is asked a few questions of 16 tokens at most.
    """
    as_json, model, no_probe = flags.pop("as_json"), flags.pop("model"), flags.pop("no_probe")
    timeout = flags.pop("timeout") or 60.0
    sections: list[Section] = []

    def look(section: Section) -> None:
        sections.append(section)
        if not as_json:
            print_section(section)

    settings = _look_at_settings(flags, look)
    if settings is not None:
        look(look_at_postgres(settings.database) if is_shared(settings.database) else _database(settings))
        look(_server(settings))
        if not settings.upstreams:
            look(_embedded())
        chosen = dict([route(model, settings.upstreams)]) if model and settings.upstreams else {}
        for upstream in settings.upstreams if not no_probe else ():
            look(probe(upstream, chosen.get(upstream.name), timeout))
    failed = any(section.failed for section in sections)
    if as_json:
        print_json({"ok": not failed, "sections": sections})
    if failed:
        raise typer.Exit(1)


def _look_at_settings(flags: dict[str, Any], look: Callable[[Section], None]) -> Settings | None:
    section = Section("Settings")
    settings = None
    try:
        settings = load(flags)
        section.add("ok", "settings", f"{len(settings.upstreams)} upstreams, {len(settings.keys)} owners with keys")
    except SettingsError as error:
        section.add("fail", "settings", error.message)
    look(section)
    return settings


def _database(settings: Settings) -> Section:
    section = Section("Database")
    path = settings.database_path.absolute()
    version = sqlite3.sqlite_version
    section.add("ok" if sqlite3.sqlite_version_info >= _OLDEST_SQLITE else "fail", "SQLite", version)
    if path.exists() and not _is_sqlite(path):
        section.add("fail", "file", f"{path} is not a SQLite database; choose another file.")
        return section
    target = path if path.exists() else path.parent
    if not os.access(target, os.W_OK) or not os.access(path.parent, os.W_OK):
        section.add("fail", "file", f"{target} cannot be written.")
        return section
    size = f"{path.stat().st_size / 1e6:.1f} MB" if path.exists() else "not there yet"
    section.add("ok", "file", f"{path} ({size})")
    free = shutil.disk_usage(path.parent).free
    section.add("ok" if free >= _LOW_DISK else "warn", "free disk", f"{free / 1e9:.1f} GB")
    _time_fsync(section, path.parent)
    return section


def _is_sqlite(path: Path) -> bool:
    """Whether it is a database, or empty and about to become one. What we may not read is told by the next check."""
    try:
        with path.open("rb") as file:
            return file.read(16) in (b"", b"SQLite format 3\0")
    except PermissionError:
        return True


def _time_fsync(section: Section, folder: Path) -> None:
    """How long the disk takes to make a commit durable; every event waits for that."""
    times: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(20):
                file.write(b"\0" * 4096)
                file.flush()
                began = time.perf_counter()
                os.fsync(file.fileno())
                times.append((time.perf_counter() - began) * 1000)
    except OSError as error:
        section.add("fail", "fsync", f"A file in {folder} cannot be written: {error.strerror}.")
        return
    median = statistics.median(times)
    section.add("ok" if median < _SLOW_FSYNC_MS else "warn", "fsync", f"{median:.2f} ms (median of {len(times)})")


def _server(settings: Settings) -> Section:
    section = Section("Server")
    if not settings.port:
        section.add("skip", "server", "The port is 0, so there is no telling where it listens.")
        return section
    server = Server(base_url(settings))
    for path, name in (("/healthz", "alive"), ("/readyz", "ready")):
        try:
            server.call("GET", path, timeout=5.0)
            section.add("ok", name, server.url)
        except Refused as error:
            section.add("fail", name, f"{server.url}{path}: {error.message}")
        except Unreachable:
            section.add("skip", "server", f"None is running at {server.url}.")
            return section
    return section


def _embedded() -> Section:
    # Every other command starts faster without this import.
    from outlive.dialects.embedded.backend import TITLE, find_weights

    section = Section("Embedded model")
    try:
        size = find_weights().stat().st_size / 1e6
        section.add("ok", "model", f"{TITLE}, {size:.0f} MB. A demo model; for yours give --upstream URL.")
    except SettingsError as error:
        section.add("fail", "model", error.message)
    return section


take_settings(
    parameter("model", str, "--model", "The model to ask, instead of the first one that is listed.", "NAME"),
    parameter("no_probe", bool, "--no-probe", "Ask the upstreams nothing."),
    parameter("timeout", float, "--timeout", "Seconds to wait for an upstream's next byte. Default: 60.", "NUMBER"),
    parameter("as_json", bool, "--json", "Print JSON, for scripts."),
)(doctor)
