"""Several nodes in one process, on one database, with a bell between them that may be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from outlive.storage.sqlite.connection import SqliteDatabase
from outlive.testing import Script
from tests.engine.bus import Bus
from tests.engine.rig import PATIENCE, Rig
from tests.support.scripting import CountingIds

NodesScene = Callable[[list[Rig]], Awaitable[None]]


@asynccontextmanager
async def open_nodes(path: Path, scripts: Sequence[Sequence[Script]], **options: Any) -> AsyncIterator[list[Rig]]:
    """One engine per list of scripts, all on one database and one bus (`rig.bus`), each hearing the others."""
    database, bus, ids = SqliteDatabase(str(path / "outlive.db")), Bus(), CountingIds()
    rigs = [
        Rig(database, each, name=f"node-{number}", bus=bus, ids=ids, **options) for number, each in enumerate(scripts)
    ]
    try:
        for rig in rigs:
            assert rig.engine.node is not None
            await rig.engine.node.start()
        yield rigs
    finally:
        await database.close()


def play_nodes(path: Path, scene: NodesScene, *scripts: Sequence[Script], **options: Any) -> None:
    async def go() -> None:
        async with asyncio.timeout(PATIENCE), open_nodes(path, scripts, **options) as rigs:
            await scene(rigs)

    asyncio.run(go())


async def go_round(rig: Rig) -> None:
    """What a node does once a second."""
    assert rig.engine.node is not None
    await rig.engine.node.go_round()
