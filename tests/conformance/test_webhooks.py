"""Suite for webhooks: a delivery is written with the terminal event, claimed by one worker, and kept for a while."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlive.core.errors import NotFound, StaleFence
from outlive.core.events import Json
from outlive.core.owners import join
from outlive.engine.webhooks import Webhooks, to_deliveries, to_endpoints, to_row
from outlive.ports.webhooks import Delivery, WebhookEndpoint
from tests.conformance.harness import StorageHarness, message, storage_test

ALL = ["response.completed", "response.failed", "response.cancelled", "response.incomplete"]
APPROVAL = "response.approval_required"
LATER = 5000.0  # every delivery of a test is due, and none is given up


async def add(
    harness: StorageHarness, endpoint_id: str = "we_1", *, owner: str = "ann", types: list[str] | None = None
) -> WebhookEndpoint:
    await harness.storage.inspector.set_alive("n1", True)
    await harness.storage.inspector.set_alive("n2", True)
    types = [*ALL, APPROVAL] if types is None else types
    endpoint = WebhookEndpoint(
        endpoint_id, owner, "n\u00e4me", "https://example.com/", types, 1.5, 2.5, "abcd", b"\0sealed"
    )
    assert await harness.storage.database.change("add_webhook", *to_row(endpoint), 3)
    return endpoint


async def find(harness: StorageHarness, owner: str = "ann", endpoint_id: str = "we_1") -> WebhookEndpoint | None:
    return next(iter(to_endpoints(await harness.storage.database.fetch("find_webhook", endpoint_id, owner))), None)


async def list_deliveries(
    harness: StorageHarness, owner: str = "ann", endpoint_id: str = "", after: str = "", limit: int = 100
) -> list[Delivery]:
    return to_deliveries(await harness.storage.database.fetch("list_deliveries", owner, endpoint_id, after, limit))


async def record(
    harness: StorageHarness, delivery_id: str, attempt: Json, due_at: float | None, delivered_at: float | None
) -> None:
    entry = msgspec.json.encode(attempt).decode()
    await harness.storage.database.change("record_attempt", delivery_id, due_at, delivered_at, entry)


async def remove(harness: StorageHarness, owner: str, endpoint_id: str) -> bool:
    unused: Any = None
    try:
        await Webhooks(harness.storage.database, unused, None, unused, unused, "n1").delete(owner, endpoint_id)
    except NotFound:
        return False
    return True


async def written(harness: StorageHarness, owner: str = "ann") -> list[tuple[str, str, str]]:
    found = await list_deliveries(harness, owner)
    return [(each.endpoint, each.response_id, each.event_type) for each in reversed(found)]


async def claim(harness: StorageHarness, worker: str = "n1", at: float = LATER, limit: int = 10) -> list[Delivery]:
    return to_deliveries(await harness.storage.database.change("claim_deliveries", "we_1", worker, at, limit))


@storage_test
async def test_an_endpoint_is_found_changed_listed_and_removed_by_its_owner_alone(harness: StorageHarness) -> None:
    database = harness.storage.database
    assert not await database.fetch("has_webhooks")
    endpoint = await add(harness)
    assert await database.fetch("has_webhooks")
    assert await find(harness) == endpoint
    assert await find(harness, "bob") is None and await find(harness, "ann", "a\0b") is None
    changed = msgspec.structs.replace(endpoint, url="https://other.example", event_types=[APPROVAL], sealed=b"x")
    assert await database.change("save_webhook", *to_row(changed)) and await find(harness) == changed
    assert not await database.change("save_webhook", *to_row(msgspec.structs.replace(endpoint, owner="bob")))
    await database.change("disable_webhook", "we_1", 7.0)
    assert await find(harness) == msgspec.structs.replace(changed, disabled_at=7.0)
    await add(harness, "we_2")
    await add(harness, "we_3")
    assert not await database.change("add_webhook", *to_row(msgspec.structs.replace(endpoint, id="we_4")), 3)
    listed = to_endpoints(await database.fetch("list_webhooks", "ann", "", 2))
    assert [each.id for each in listed] == ["we_3", "we_2"]
    assert [each.id for each in to_endpoints(await database.fetch("list_webhooks", "ann", "we_2", 2))] == ["we_1"]
    assert not await remove(harness, "bob", "we_1") and await remove(harness, "ann", "we_1")
    assert await find(harness) is None and not await remove(harness, "ann", "we_1")


@storage_test
async def test_an_end_is_written_for_every_endpoint_that_wants_it(harness: StorageHarness) -> None:
    await add(harness)
    await add(harness, "we_2", types=["response.failed"])
    await add(harness, "we_3", owner="bob")
    first = await harness.answer()
    second = await harness.answer(status="failed")
    assert sorted(await written(harness)) == sorted(
        [
            ("we_1", first, "response.completed"),
            ("we_1", second, "response.failed"),
            ("we_2", second, "response.failed"),
        ]
    )
    assert await written(harness, "bob") == []
    await harness.storage.database.change("disable_webhook", "we_1", 7.0)
    await harness.answer()
    assert len(await written(harness)) == 3


@storage_test
async def test_an_end_of_an_end_user_is_written_for_the_owner(harness: StorageHarness) -> None:
    await add(harness)
    response_id = await harness.answer(owner=join("ann", "u1"))
    await harness.answer(owner="anna")
    assert await written(harness) == [("we_1", response_id, "response.completed")]


@storage_test
async def test_a_stale_closing_writes_no_delivery(harness: StorageHarness) -> None:
    await add(harness)
    response_id, lease = await harness.start()
    assert await harness.ledger.take_over(response_id, "w2") is not None
    with pytest.raises(StaleFence):
        await harness.close(lease)
    assert await written(harness) == []


@storage_test
async def test_the_approval_goes_before_the_end(harness: StorageHarness) -> None:
    await add(harness)
    response_id, lease = await harness.start()
    request = {"id": "mcpr_1", "type": "mcp_approval_request", "server_label": "l", "name": "n", "arguments": "{}"}
    await harness.close(lease, turn=[message("msg_a", "Wait.", "assistant"), request])
    assert await written(harness) == [
        ("we_1", response_id, APPROVAL),
        ("we_1", response_id, "response.completed"),
    ]
    (approval,) = await claim(harness)
    assert approval.event_type == APPROVAL and await claim(harness) == []
    await record(harness, approval.id, {"at": 1.0}, LATER - 1, None)  # not yet: it is tried again
    (again,) = await claim(harness)
    assert (again.id, again.attempts, again.log) == (approval.id, 2, [{"at": 1.0}])
    await record(harness, approval.id, {"at": 2.0}, None, 2.0)
    (end,) = await claim(harness)
    assert end.event_type == "response.completed"


@storage_test
async def test_a_delivery_is_claimed_by_one_worker_and_again_once_that_is_gone(harness: StorageHarness) -> None:
    await add(harness)
    for _ in range(3):
        await harness.answer()
    database = harness.storage.database
    assert await claim(harness, at=1.0) == [] and await database.fetch("find_due_webhooks", 1.0) == []
    assert [each.id for each in to_endpoints(await database.fetch("find_due_webhooks", LATER))] == ["we_1"]
    assert len(await claim(harness, limit=2)) == 2 and len(await claim(harness)) == 1
    assert await claim(harness) == []
    if await harness.storage.inspector.set_alive("n1", True):
        assert await claim(harness, "n2") == []
        await harness.storage.inspector.set_alive("n1", False)
    taken = await claim(harness, "n2")
    assert [each.attempts for each in taken] == [2, 2, 2]
    await database.change("release_deliveries", "n2")
    assert len(await claim(harness, "n2")) == 3
    assert await claim(harness, "n2", at=1e9) == []  # given up


@storage_test
async def test_a_delivery_that_ended_is_due_again_only_by_redelivery(harness: StorageHarness) -> None:
    await add(harness)
    response_id = await harness.answer()
    database = harness.storage.database
    (taken,) = await claim(harness)
    await record(harness, taken.id, {"at": 1.0, "status_code": 204}, None, 6.0)
    await record(harness, taken.id, {"at": 2.0, "status_code": 500}, 7.0, None)  # of a worker that was thought dead
    assert await claim(harness) == []
    (listed,) = await list_deliveries(harness, endpoint_id="we_1")
    assert (listed.due_at, listed.delivered_at, listed.log) == (None, 6.0, [{"at": 1.0, "status_code": 204}])
    assert await database.change("redeliver", taken.id, "bob", 9.0, LATER * 2) == []
    (again,) = to_deliveries(await database.change("redeliver", taken.id, "ann", 9.0, LATER * 2))
    assert (again.id, again.response_id, again.delivered_at) == (taken.id, response_id, None)
    assert [each.id for each in await claim(harness)] == [taken.id]


@storage_test
async def test_deliveries_are_listed_in_pages_of_one_endpoint_or_all(harness: StorageHarness) -> None:
    await add(harness)
    await add(harness, "we_2", types=["response.completed"])
    await harness.answer()
    await harness.answer(status="failed")
    whole = await list_deliveries(harness)
    assert len(whole) == 3 and len(await list_deliveries(harness, endpoint_id="we_2")) == 1
    assert await list_deliveries(harness, after=whole[0].id, limit=1) == whole[1:2]
    assert await list_deliveries(harness, after="wh_unknown", limit=1) == []
    for delivery_id, owner, found in ((whole[0].id, "ann", 1), (whole[0].id, "bob", 0), ("wh_1", "ann", 0)):
        assert len(await harness.storage.database.fetch("find_delivery", delivery_id, owner)) == found
    assert await list_deliveries(harness, "bob") == []


@storage_test
async def test_deliveries_go_with_their_response_their_endpoint_and_time(harness: StorageHarness) -> None:
    await add(harness)
    await add(harness, "we_2")
    deleted = await harness.answer()
    await harness.answer()
    await harness.ledger.delete("ann", deleted)
    assert len(await written(harness)) == 2
    assert await remove(harness, "ann", "we_2")
    assert len(await written(harness)) == 1
    day = 86_400.0
    await harness.storage.retention.forget_keys(harness.now + 8 * day)
    assert len(await written(harness)) == 1
    await harness.storage.retention.forget_keys(harness.now + 10 * day)
    assert (await harness.storage.inspector.rows())["webhook_deliveries"] == 0


@storage_test
async def test_deliveries_that_wait_are_counted_unless_given_up_or_for_a_disabled_endpoint(
    harness: StorageHarness,
) -> None:
    async def measure() -> tuple[int, float | None]:
        state = await harness.storage.catalog.measure()
        return state.webhooks, state.oldest_webhook_at

    await add(harness)
    await harness.answer()
    (delivery,) = await list_deliveries(harness)
    assert await measure() == (0, None)  # given up long before today
    await harness.storage.database.change("redeliver", delivery.id, "ann", 5.0, 1e11)
    assert await measure() == (1, delivery.created_at)
    await harness.storage.database.change("disable_webhook", "we_1", 7.0)
    assert await measure() == (0, None)
