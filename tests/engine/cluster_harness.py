"""Several nodes in one process, on one database, with a bell between them that a test may cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from outlive.storage.sqlite.connection import SqliteDatabase
from outlive.testing import Script
from tests.engine.bus import Bus
from tests.engine.harness import TIMEOUT, Harness
from tests.support.scripting import CountingIds

ClusterBody = Callable[[list[Harness]], Awaitable[None]]


@asynccontextmanager
async def open_nodes(path: Path, scripts: Sequence[Sequence[Script]], **options: Any) -> AsyncIterator[list[Harness]]:
    """Open one engine per list of scripts, all on one database and one bus."""
    database, bus, ids = SqliteDatabase(str(path / "outlive.db")), Bus(), CountingIds()
    harnesses = [
        Harness(database, each, name=f"node-{number}", bus=bus, ids=ids, **options)
        for number, each in enumerate(scripts)
    ]
    try:
        for harness in harnesses:
            assert harness.node is not None
            await harness.node.start()
        yield harnesses
    finally:
        await database.close()


def run_with_cluster(path: Path, body: ClusterBody, *scripts: Sequence[Script], **options: Any) -> None:
    async def go() -> None:
        async with asyncio.timeout(TIMEOUT), open_nodes(path, scripts, **options) as harnesses:
            await body(harnesses)

    asyncio.run(go())


async def poll_once(harness: Harness) -> None:
    """Do what a node does once a second."""
    assert harness.node is not None
    await harness.node.poll_once()
