"""Suite for tickets: they are found until they are removed, counted as valid until they expire, and then erased."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from outlive.core.errors import NotFound, Unauthenticated
from outlive.engine.keys import Tickets, digest_of
from outlive.ports.storage import Ticket
from tests.conformance.harness import StorageHarness, storage_test
from tests.engine.harness import FixedClock
from tests.support.scripting import CountingIds


class Stream:
    """Notes that it was cut."""

    cut = False

    def stop(self) -> None:
        self.cut = True


def make(harness: StorageHarness) -> tuple[Tickets, FixedClock]:
    clock = FixedClock()
    return Tickets(harness.storage.database, clock, CountingIds(), 3600.0), clock


@storage_test
async def test_a_ticket_is_found_until_its_owner_removes_it(harness: StorageHarness) -> None:
    tickets, clock = make(harness)
    made = await tickets.create("ann", "resp_1", None)
    _, _, secret = made["ticket"].partition(".")
    ticket = Ticket(made["id"], "ann", "resp_1", clock.now() + 3600.0, digest_of(secret))
    assert await tickets.find(made["ticket"]) == ticket
    for unknown in (f"ticket_9.{secret}", f"a\0b.{secret}", f"{ticket.id}.other"):
        with pytest.raises(Unauthenticated):
            await tickets.find(unknown)
    for owner, target in (("bob", "resp_1"), ("ann", "resp_2")):
        with pytest.raises(NotFound):
            await tickets.revoke(owner, target, ticket.id)
    await tickets.revoke("ann", "resp_1", ticket.id)
    with pytest.raises(NotFound):
        await tickets.revoke("ann", "resp_1", ticket.id)
    with pytest.raises(Unauthenticated):
        await tickets.find(made["ticket"])


@storage_test
async def test_valid_tickets_are_those_that_expire_later(harness: StorageHarness) -> None:
    tickets, clock = make(harness)
    began = clock.now()
    made = [await tickets.create("ann", "resp_1", 1000.0 + number) for number in range(4)]
    found = [await tickets.find(each["ticket"]) for each in made]
    unknown = Ticket("ticket_9", "ann", "resp_1", began + 5000.0, b"")
    streams = [Stream() for _ in range(4)]
    with ExitStack() as watched:
        for ticket, stream in zip([*found[:3], unknown], streams, strict=True):
            watched.enter_context(tickets.watch(ticket, stream.stop))
        clock.time += 1001.0
        await tickets.check_once()
    assert [stream.cut for stream in streams] == [True, True, False, True]
    await harness.storage.retention.forget_keys(began + 1002.5)
    assert (await harness.storage.inspector.rows())["tickets"] == 1


@storage_test
async def test_a_ticket_opens_the_responses_of_its_conversation(harness: StorageHarness) -> None:
    conversation, other = await harness.converse("before"), await harness.converse("before")
    inside, outside = await harness.answer("Hi", conversation=conversation), await harness.answer("Hi")
    tickets, _ = make(harness)

    async def opens(target: str, response_id: str, owner: str = "ann") -> bool:
        return await tickets.opens_response(Ticket("ticket_1", owner, target, 1000.0, b""), response_id)

    assert await opens(conversation, inside)
    assert not await opens(other, inside)
    assert not await opens(conversation, outside)
    assert await opens(outside, outside)
    assert not await opens(conversation, inside, "bob")
    await harness.ledger.delete("ann", inside)
    assert not await opens(conversation, inside)
