"""The line: what a response that waits for a worker is told of its place and its waiting time."""

from __future__ import annotations

from outlive.core.events import Json
from outlive.engine.engine import Engine
from outlive.ports.catalog import Record


async def find_places(engine: Engine, records: list[Record]) -> dict[str, Json]:
    """The extra object of each that waits: its place in the queue (1 is the next) and for how many seconds it waits."""
    waiting = {record.response_id: record for record in records if record.status == "queued"}
    if not waiting:
        return {}
    now = engine.clock.now()
    places = await engine.catalog.queue(list(waiting))
    return {
        response_id: {"queue": {"place": place, "seconds": max(0, int(now - waiting[response_id].created_at))}}
        for response_id, place in places.items()
    }
