"""Suite for tickets: they are found until they are removed, counted as valid until they expire, and then erased."""

from __future__ import annotations

from outlive.ports.storage import Ticket
from tests.conformance.harness import StorageHarness, storage_test


def make(ticket_id: str, target: str, expires_at: float = 1000.0) -> Ticket:
    return Ticket(ticket_id, "ann", target, expires_at, b"\x00digest")


@storage_test
async def test_a_ticket_is_found_until_its_owner_removes_it(harness: StorageHarness) -> None:
    tickets = harness.storage.tickets
    ticket = make("ticket_1", "resp_1")
    await tickets.add(ticket)
    assert await tickets.find("ticket_1") == ticket
    assert await tickets.find("ticket_2") is None and await tickets.find("a\0b") is None
    assert not await tickets.remove("bob", "resp_1", "ticket_1")
    assert not await tickets.remove("ann", "resp_2", "ticket_1")
    assert await tickets.remove("ann", "resp_1", "ticket_1")
    assert not await tickets.remove("ann", "resp_1", "ticket_1")
    assert await tickets.find("ticket_1") is None


@storage_test
async def test_valid_tickets_are_those_that_expire_later(harness: StorageHarness) -> None:
    tickets = harness.storage.tickets
    for number in range(4):
        await tickets.add(make(f"ticket_{number}", "resp_1", 1000.0 + number))
    asked = ["ticket_0", "ticket_1", "ticket_2", "ticket_9"]
    assert await tickets.find_valid(asked, 1001.0) == {"ticket_2"}
    assert await tickets.find_valid([], 0.0) == set()
    await harness.storage.retention.forget_keys(1002.5)
    assert (await harness.storage.inspector.rows())["tickets"] == 1


@storage_test
async def test_a_ticket_holds_the_responses_of_its_conversation(harness: StorageHarness) -> None:
    conversation, other = await harness.converse("before"), await harness.converse("before")
    inside, outside = await harness.answer("Hi", conversation=conversation), await harness.answer("Hi")
    tickets = harness.storage.tickets
    assert await tickets.holds(make("ticket_1", conversation), inside)
    assert not await tickets.holds(make("ticket_1", other), inside)
    assert not await tickets.holds(make("ticket_1", conversation), outside)
    assert not await tickets.holds(Ticket("ticket_1", "bob", conversation, 1000.0, b""), inside)
    await harness.ledger.delete("ann", inside)
    assert not await tickets.holds(make("ticket_1", conversation), inside)
