"""The strict check of a stream of events: the grammar, the header of each lifecycle event, log probabilities, and a
fold of the events that equals their terminal event."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from outlive.core.events import Draft, Json, number, read_frame, split_frames
from outlive.core.fold import Fold
from outlive.core.grammar import TERMINAL_EVENTS
from outlive.storage.packing import lengthen
from tests.support import grammar

# Fields that change while a response runs; all others are the same from its first event to its last.
LEARNED = frozenset(
    {"status", "output", "usage", "completed_at", "error", "incomplete_details", "model", "service_tier", "outlive"}
)


def check(events: Sequence[Json], *, finished: bool = True) -> None:
    """Raise ValueError or AssertionError, with one sentence, when the events break a rule."""
    grammar.check(events, finished=finished)
    _check_headers(events)
    _check_logprobs(events)
    _check_fold(events)


def _check_headers(events: Sequence[Json]) -> None:
    """Check that the response in each lifecycle event is the same one, but for the fields that change."""
    lives = [event for event in events if "response" in event]
    for event in lives[1:]:
        before, after = ({**each["response"]} for each in (lives[0], event))
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        assert changed <= LEARNED, f"{event['type']} has another {sorted(changed - LEARNED)}"


def _check_logprobs(events: Sequence[Json]) -> None:
    """Log probabilities add up too."""
    reported: dict[tuple[int, int], list[Any]] = {}
    for event in events:
        if event["type"].startswith("response.output_text.") and "logprobs" in event:
            entries = reported.setdefault((event["output_index"], event["content_index"]), [])
            if event["type"] == "response.output_text.delta":
                entries += [entry["token"] for entry in event["logprobs"]]
            else:
                assert [entry["token"] for entry in event["logprobs"]] == entries, "log probabilities do not add up"


def _check_fold(events: Sequence[Json]) -> None:
    """The fold of all events but the last holds what the last one carries."""
    fold = Fold()
    for event in events[:-1]:
        fields = {name: value for name, value in event.items() if name not in ("type", "sequence_number")}
        fold.replay(b"".join(number([Draft(event["type"], fields)], event["sequence_number"] - 1)))
    if events and events[-1]["type"] in TERMINAL_EVENTS:
        assert fold.output == events[-1]["response"]["output"], "the fold is not what the terminal event carries"
        assert not list(fold.open_items()), "the fold has something open"


# -- what a server has journaled


def check_journals(database_url: str) -> int:
    """Check the stream of every response in a database; how many there were."""
    count = 0
    for response_id, ended, frames in _read(database_url):
        events = [read_frame(frame) for frame in split_frames(frames)]
        try:
            check(events, finished=ended)
        except (ValueError, AssertionError) as broken:
            raise AssertionError(f"{response_id}: {broken}") from broken
        count += 1
    return count


_ALL = """
SELECT r.id, r.ended_at IS NOT NULL, e.frames FROM {0}responses r JOIN {0}events e ON e.response = r.key
 WHERE NOT r.hidden ORDER BY r.key, e.first
"""


def _read(database_url: str) -> Iterator[tuple[str, bool, bytes]]:
    """Every response that is not deleted: its id, whether it has ended, and its frames."""
    rows = (
        _read_sqlite(database_url) if database_url.startswith("sqlite") else asyncio.run(_read_postgres(database_url))
    )
    journals: dict[str, tuple[bool, list[bytes]]] = {}
    for response_id, ended, frames in rows:
        journals.setdefault(response_id, (bool(ended), []))[1].append(lengthen(frames))
    for response_id, (ended, pieces) in journals.items():
        yield response_id, ended, b"".join(pieces)


def _read_sqlite(database_url: str) -> list[tuple[str, bool, bytes]]:
    path = Path(database_url.removeprefix("sqlite:///"))
    # Some tests put another file there, to see it left alone.
    if not path.exists() or not path.read_bytes().startswith(b"SQLite format 3"):
        return []
    with sqlite3.connect(path) as db:
        rows = db.execute(_ALL.format("")).fetchall()
    db.close()
    return rows


async def _read_postgres(database_url: str) -> list[tuple[str, bool, bytes]]:
    import asyncpg

    connection = await asyncpg.connect(database_url)
    try:
        return [tuple(row) for row in await connection.fetch(_ALL.format("outlive."))]
    finally:
        await connection.close()
