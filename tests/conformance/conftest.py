"""The adapters that the suites run on: a new database is one more line in each table here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.storages import (
    Opener,
    RunOpener,
    open_postgres,
    open_run,
    open_run_memory,
    open_sqlite,
)
from tests.support.postgres import DATABASES

STORAGES: dict[str, Callable[[Path], Opener]] = {
    "sqlite": lambda folder: lambda: open_sqlite(folder / "outlive.db"),
    "postgres": lambda folder: lambda: open_postgres(DATABASES.borrow(str(folder))),
}
RUN_STORAGES: dict[str, Callable[[Path], RunOpener]] = {
    "sqlite": lambda folder: lambda: open_run(open_sqlite(folder / "outlive.db")),
    "postgres": lambda folder: lambda: open_run(open_postgres(DATABASES.borrow(str(folder)))),
    "memory": lambda folder: open_run_memory,
}


@pytest.fixture(params=list(STORAGES))
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    return STORAGES[request.param](tmp_path)


@pytest.fixture(params=list(RUN_STORAGES))
def run_opener(request: pytest.FixtureRequest, tmp_path: Path) -> RunOpener:
    return RUN_STORAGES[request.param](tmp_path)
