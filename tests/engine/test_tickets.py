"""Tickets are valid until they expire or are revoked, and the streams that came with them are stopped then."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlive.core.errors import NotFound, Unauthenticated
from outlive.core.usage import DAY
from outlive.testing import Script, answer
from tests.engine.harness import Harness, run_with_harness

DONE: Script = [answer("Well.")]


def test_a_ticket_is_found_until_it_expires(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        response, engine = await harness.answer(), harness.engine
        default = await engine.create_ticket("ann", response["id"], True, None)
        short = await engine.create_ticket("ann", response["id"], True, 5)
        assert default["expires_at"] - default["created_at"] == 3600
        assert (await engine.tickets.find(short["ticket"])).target == response["id"]
        harness.clock.time += 5
        with pytest.raises(Unauthenticated):
            await engine.tickets.find(short["ticket"])
        assert (await engine.tickets.find(default["ticket"])).owner == "ann"
        harness.clock.time += 3600 + DAY
        await harness.sweeper.sweep()
        assert await harness.database.fetch("find_ticket", default["id"]) == []

    run_with_harness(tmp_path, body, DONE)


def test_a_ticket_needs_a_thing_of_its_owner(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        response, conversation = await harness.answer(), await harness.converse()
        for owner, target, of_response in (
            ("bob", response["id"], True),
            ("bob", conversation, False),
            ("ann", conversation, True),
            ("ann", response["id"], False),
        ):
            with pytest.raises(NotFound):
                await harness.engine.create_ticket(owner, target, of_response, None)

    run_with_harness(tmp_path, body, DONE)


def test_a_check_stops_only_the_streams_of_invalid_tickets(tmp_path: Path) -> None:
    async def body(harness: Harness) -> None:
        response, engine = await harness.answer(), harness.engine
        made = [await engine.create_ticket("ann", response["id"], True, seconds) for seconds in (5, 50)]
        cursors = [await engine.follow("ann", response["id"]) for _ in range(3)]
        tickets = [await engine.tickets.find(each["ticket"]) for each in made]
        with (
            engine.tickets.watch(tickets[0], cursors[0].stop),
            engine.tickets.watch(tickets[1], cursors[1].stop),
            engine.tickets.watch(None, cursors[2].stop),
        ):
            await engine.tickets.check_once()
            assert [cursor.stopped for cursor in cursors] == [False, False, False]
            harness.clock.time += 6
            await engine.tickets.check_once()
            assert [cursor.stopped for cursor in cursors] == [True, False, False]
            await engine.tickets.revoke("ann", response["id"], made[1]["id"])
            assert [cursor.stopped for cursor in cursors] == [True, True, False]

    run_with_harness(tmp_path, body, DONE)
